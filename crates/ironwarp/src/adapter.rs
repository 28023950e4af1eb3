//! The adapter, from which all other objects are created.

use crate::shared::Shared;
use ironwarp_engine::gid::{GidEntry, GidTable};
use ironwarp_engine::{Config, Statistics};
use ironwarp_rnic::device::HANDLERS;
use std::fmt;
use std::io;
use std::sync::Arc;

/// An RDMA adapter in this process. Clones are handles to the same adapter.
///
/// Objects created from an adapter keep it alive. When the last of them is dropped, the adapter sends all posted
/// requests and waits up to [`Config::close`] for its connections to close.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use ironwarp::prelude::*;
///
/// let adapter = Adapter::open(Config::default().lanes(1))?;
/// let completions = adapter.completion_queue(64)?;
/// let domain = adapter.protection_domain();
/// # let _ = (completions, domain);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Adapter {
    pub(crate) shared: Arc<Shared>,
}

impl Adapter {
    /// Creates an adapter with the default settings.
    ///
    /// ```
    /// let adapter = ironwarp::Adapter::new()?;
    /// assert!(adapter.config().crc);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel refuses a resource, such as a file descriptor.
    pub fn new() -> io::Result<Self> {
        Self::open(Config::default())
    }

    /// Creates an adapter with the given settings. The adapter starts its threads when they are first needed, for
    /// example for the first connection.
    ///
    /// ```
    /// use ironwarp::prelude::*;
    ///
    /// // Read settings from environment variables such as IRONWARP_LANES.
    /// let adapter = Adapter::open(Config::from_env()?)?;
    /// assert_eq!(adapter.config().lanes, Config::default().lanes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel refuses a resource, such as a file descriptor, or if a file that the settings name cannot be
    /// read.
    pub fn open(config: Config) -> io::Result<Self> {
        Ok(Self { shared: Arc::new(Shared::new(config)?) })
    }

    /// Returns the settings of the adapter.
    pub fn config(&self) -> &Config {
        self.shared.engine.config()
    }

    /// Returns the limits of the adapter: *Query RNIC* (requirement N1).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let limits = adapter.query();
    /// assert!(limits.completion_handlers > 1);
    /// assert_eq!(limits.ird, adapter.config().ird);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn query(&self) -> Limits {
        let config = self.config();
        Limits { completion_handlers: HANDLERS, tags: config.tags, ird: config.ird, ord: config.ord }
    }

    /// Returns the addresses of this host as GIDs, by index: the address of the default route's interface comes first,
    /// loopback last. An index keeps its address as long as the process lives; new addresses are appended.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// for entry in adapter.gids()? {
    ///     println!("{}: {} on {}, MTU {}", entry.index, entry.gid, entry.interface, entry.mtu);
    /// }
    /// # assert!(adapter.gids()?.iter().any(|entry| entry.gid.to_string() == "::ffff:127.0.0.1"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel does not report its addresses.
    pub fn gids(&self) -> io::Result<Vec<GidEntry>> {
        GidTable::of_process().entries()
    }

    /// Returns counters of the adapter's threads: how many run, and how often they woke up.
    pub fn statistics(&self) -> Statistics {
        self.shared.engine.statistics()
    }
}

// Not derived: prints what `Shared` prints, which is already named `Adapter`.
impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.fmt(f)
    }
}

/// Limits of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of completion handlers, not counting the private handlers of completion queues.
    pub completion_handlers: usize,
    /// Maximum number of memory regions and windows.
    pub tags: usize,
    /// Default maximum number of incoming Reads and atomic operations outstanding on a queue pair.
    pub ird: u16,
    /// Default maximum number of outgoing Reads and atomic operations outstanding on a queue pair.
    pub ord: u16,
}
