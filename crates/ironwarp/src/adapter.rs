//! The adapter, from which all other objects are created.

use crate::device::LogicalDevice;
use crate::shared::Shared;
use ironwarp_engine::gid::GidEntry;
use ironwarp_engine::{Config, Shutdown, Statistics, logical};
use ironwarp_rnic::device::HANDLERS;
use ironwarp_rnic::memory::Usage;
use ironwarp_rnic::quota::Resource;
use std::fmt;
use std::io;
use std::sync::Arc;

/// An RDMA adapter in this process. Clones are handles to the same adapter.
///
/// Objects created from an adapter keep it alive. When the last of them is dropped, the adapter sends all posted
/// requests and waits up to [`Config::close`] for its connections to close. [`shutdown`](Self::shutdown) ends it earlier.
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

    /// Creates an adapter with the given settings: it is the first logical device of the setting
    /// [`devices`](Config::devices), and [`builder`](Self::builder) opens the others. The adapter starts its threads when they are first needed, for
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
        Self::builder().config(config).open()
    }

    /// Returns a builder, which can open any logical device of the settings.
    ///
    /// ```
    /// use ironwarp::prelude::*;
    ///
    /// let config = Config::default().devices("2".parse()?);
    /// let adapter = Adapter::builder().config(config).device("ironwarp1").open()?;
    /// assert_eq!(adapter.device().name(), "ironwarp1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder() -> AdapterBuilder {
        AdapterBuilder { config: Config::default(), device: None }
    }

    /// Returns the logical devices that the settings describe, at least one.
    ///
    /// ```
    /// use ironwarp::prelude::*;
    ///
    /// let devices = Adapter::devices(&Config::default().devices("8".parse()?))?;
    /// assert_eq!((devices.len(), devices[7].name()), (8, "ironwarp7"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if two devices have the same name, if no device would exist, or if the kernel does not list its interfaces.
    pub fn devices(config: &Config) -> io::Result<Vec<LogicalDevice>> {
        Ok(logical::devices(config)?.into_iter().map(LogicalDevice::new).collect())
    }

    /// Returns the logical device that this adapter is.
    ///
    /// ```
    /// let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.device().name(), "ironwarp0");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn device(&self) -> LogicalDevice {
        LogicalDevice::new(Arc::clone(self.shared.engine.logical()))
    }

    /// Returns the settings of the adapter.
    pub fn config(&self) -> &Config {
        self.shared.engine.config()
    }

    /// Returns the limits of the adapter, or of the function that it is: *Query RNIC* (requirement N1).
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let limits = adapter.query();
    /// let handlers = adapter.completion_handlers(limits.completion_handlers.min(4))?;
    /// # drop(handlers);
    /// assert_eq!(limits.ird, adapter.config().ird);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn query(&self) -> Limits {
        let config = self.config();
        let within = |limit: usize, quota| {
            usize::try_from(self.quotas().get(quota)).map_or(limit, |quota| limit.min(quota))
        };
        Limits {
            completion_handlers: within(HANDLERS, Resource::CompletionHandlers),
            tags: within(config.tags, Resource::Tags),
            ird: config.ird,
            ord: config.ord,
        }
    }

    /// Returns the addresses of the adapter's device as GIDs, by index. The default device has all addresses of this
    /// host: that of the default route's interface comes first, loopback last. An index keeps its address as long as the
    /// process lives; new addresses are appended. If the device has several [ports](LogicalDevice::ports), their GIDs
    /// follow each other, and each port has its own indices.
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
        let entries = self.shared.engine.logical().entries()?;
        Ok(entries.into_iter().map(|(_, entry)| entry).collect())
    }

    /// Ends the adapter while it is in use (requirement N11): its connections, its threads, and all notification. Its
    /// [functions](Self::function) end with it. If this is a function, ends what belongs to it, and the adapter goes on.
    ///
    /// When this returns, every request that was posted has exactly one completion: success, an error, or
    /// [`Flushed`](crate::completion::Status::Flushed) if it was cut short. Completions that were not polled, and events
    /// that were not taken, stay where they are. After that no completion arrives, no event is raised, and no connection is
    /// left. Receives of a [`SharedReceiveQueue`](crate::queue::SharedReceiveQueue) that no message has used do not complete.
    ///
    /// The objects of the adapter can still be used and dropped, in any order:
    ///
    /// | verb | after a shutdown |
    /// |---|---|
    /// | post to a queue pair, a shared receive queue or a control queue | [`PostError::ShutDown`](crate::queue::PostError::ShutDown) |
    /// | create, connect, listen | [`io::ErrorKind::NotConnected`], alone or in the error of the verb |
    /// | [`set_state`](crate::queue::QueuePair::set_state), except to `Error` and `Reset` | [`IllegalTransition`](crate::queue::IllegalTransition) |
    /// | wait for a completion, an event or a connection request | what is left; then [`WaitError::Stopped`](crate::WaitError::Stopped), also for threads that wait already |
    /// | poll, query, and verbs of memory | as before |
    ///
    /// Any thread can call this, also one that waits at a completion handler otherwise, and several at once: each returns
    /// when the adapter has ended. A later call has no effect, but [`Shutdown::Flush`] cuts a drain short that another
    /// thread waits for.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let (client, server) = ironwarp::example::pair()?;
    /// use ironwarp::Shutdown;
    /// use ironwarp::queue::PostError;
    ///
    /// server.qp.post_receive(1, &[server.region.slice(..8)?])?;
    /// server.qp.post_receive(2, &[server.region.slice(8..)?])?;
    /// client.qp.post_send(WorkRequest::send_inline(3, b"the last"))?;
    /// client.adapter.shutdown(Shutdown::Drain(Duration::from_secs(5)));
    ///
    /// assert_eq!(client.cq.poll_one()?.expect("its completion").status, Status::Success);
    /// assert_eq!(client.qp.post_send(WorkRequest::send(4, &[])), Err(PostError::ShutDown));
    /// assert_eq!(server.cq.wait(Duration::from_secs(5))?.status, Status::Success);
    /// assert_eq!(server.cq.wait(Duration::from_secs(5))?.status, Status::Flushed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shutdown(&self, how: Shutdown) {
        self.shared.engine.shut_down(how);
    }

    /// Returns how many tags are in use, and how many indices of tags are used up (requirement M4). A tag is never
    /// assigned twice. After about four billion registrations and bindings, further ones fail with
    /// [`RegisterError::UsedUp`](crate::memory::RegisterError::UsedUp), and the adapter has to be opened again.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// # let domain = adapter.protection_domain();
    /// let region = domain.register(ironwarp::memory::Buffer::new(64)?, ironwarp::memory::Access::LOCAL_READ)?;
    /// let usage = adapter.tag_usage();
    /// assert_eq!((usage.entries, usage.retired), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tag_usage(&self) -> Usage {
        self.shared.device().table().usage()
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

/// Builds an adapter: selects its settings and its logical device, then opens it. [`Adapter::builder`] returns a
/// builder.
///
/// ```
/// use ironwarp::prelude::*;
///
/// // Two ends in one process, each at an address of its own.
/// let builder = Adapter::builder().config(Config::default().devices("2".parse()?));
/// let (client, server) = (builder.clone().device("ironwarp0").open()?, builder.device("ironwarp1").open()?);
/// assert_ne!(client.gids()?, server.gids()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "no adapter is opened until `open` is called"]
pub struct AdapterBuilder {
    config: Config,
    device: Option<String>,
}

impl AdapterBuilder {
    /// Sets the settings. Defaults to [`Config::default`].
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Selects the logical device by its name. Defaults to the first device of the settings.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Opens the adapter. Several adapters can be open for one device.
    ///
    /// ```
    /// use ironwarp::Adapter;
    ///
    /// let error = Adapter::builder().device("mlx5_0").open().unwrap_err();
    /// assert_eq!(error.to_string(), "no device `mlx5_0`: the devices are ironwarp0");
    /// ```
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::NotFound`] if no device has the name. Fails, too, if the devices of the settings cannot be
    /// [listed](Adapter::devices), if the kernel refuses a resource, such as a file descriptor, or if a file that the
    /// settings name cannot be read.
    pub fn open(self) -> io::Result<Adapter> {
        let Self { config, device } = self;
        let device = match device {
            Some(name) => logical::find(&config, &name)?,
            None => logical::devices(&config)?.remove(0),
        };
        Ok(Adapter { shared: Arc::new(Shared::new(config, &device)?) })
    }
}

/// Limits of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of completion handlers that can be registered at a time. The private handlers of completion
    /// queues and the handlers of lanes do not count.
    ///
    /// For a C program the completion channels are the handlers, with the same maximum. Its `num_comp_vectors` is another
    /// number: a completion vector selects the thread that serves a completion queue, so there are as many as
    /// [lanes](crate::steering::Steering::lanes).
    pub completion_handlers: usize,
    /// Maximum number of memory regions and windows.
    pub tags: usize,
    /// Default maximum number of incoming Reads and atomic operations outstanding on a queue pair.
    pub ird: u16,
    /// Default maximum number of outgoing Reads and atomic operations outstanding on a queue pair.
    pub ord: u16,
}
