//! Logical devices: what the setting [`devices`](crate::Config::devices) describes, and one of which an
//! [`Adapter`](crate::Adapter) opens.
//!
//! By default there is one device with the addresses of all interfaces. A process can have several, each with its own
//! addresses. Addresses keep them apart: an adapter listens at, connects from and accepts connections to the addresses
//! of its own device only.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ironwarp::prelude::*;
//!
//! let config = Config::default().devices("8 numa=0,1".parse()?);
//! for device in Adapter::devices(&config)? {
//!     println!("{}: NUMA node {:?}", device.name(), device.numa_node());
//!     for port in device.ports() {
//!         println!("  port {}: {:?}, active: {}", port.number(), port.gids()?, port.is_active()?);
//!     }
//! }
//! let adapter = Adapter::builder().config(config).device("ironwarp3").open()?;
//! assert_eq!(adapter.device().numa_node(), Some(1));
//! # Ok(())
//! # }
//! ```

use ironwarp_engine::gid::GidEntry;
use ironwarp_engine::logical::LogicalDevice as Inner;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A logical device. [`Adapter::devices`](crate::Adapter::devices) lists those of the settings, and
/// [`Adapter::device`](crate::Adapter::device) returns that of an adapter.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::prelude::*;
///
/// let config = Config::default().devices("2 name=mlx5_0 ports=2 rate=1g speed=100g delay=20us".parse()?);
/// let devices = Adapter::devices(&config)?;
/// assert_eq!((devices[1].name(), devices[1].ports().len()), ("mlx5_1", 2));
/// assert_eq!((devices[1].rate(), devices[1].speed()), (Some(1_000_000_000), 100_000_000_000));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LogicalDevice {
    inner: Arc<Inner>,
}

/// A port of a [`LogicalDevice`].
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::prelude::*;
///
/// let config = Config::default().devices("1 ports=2".parse()?);
/// let adapter = Adapter::open(config)?;
/// let port = &adapter.device().ports()[1];
/// assert_eq!((port.number(), port.is_active()?), (2, true));
/// assert_eq!(port.gids()?[0].gid, "127.0.2.2".parse()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Port {
    device: Arc<Inner>,
    /// Index in the device's list of ports.
    at: usize,
}

impl LogicalDevice {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// Returns the ports, in the order of their numbers.
    pub fn ports(&self) -> Vec<Port> {
        (0..self.inner.ports().len()).map(|at| Port { device: Arc::clone(&self.inner), at }).collect()
    }

    /// Returns the speed that C programs see, in bits per second. It limits nothing.
    pub fn speed(&self) -> u64 {
        self.inner.speed()
    }

    /// Returns the maximum rate of each direction in bits per second, or `None` if it is not limited.
    pub fn rate(&self) -> Option<u64> {
        self.inner.rate()
    }

    /// Returns the time by which everything that the device receives is delayed.
    pub fn delay(&self) -> Duration {
        self.inner.delay()
    }

    /// Returns the NUMA node that the settings assign to the device, or `None` if they assign none.
    pub fn numa_node(&self) -> Option<u16> {
        self.inner.numa_node()
    }
}

impl Port {
    /// Returns the number of the port. The first port has number 1.
    pub fn number(&self) -> u8 {
        self.inner().number()
    }

    /// Returns the GIDs of the port by index. An index keeps its address as long as the process lives; new addresses
    /// are appended.
    ///
    /// ```
    /// # use ironwarp::prelude::*;
    /// let adapter = Adapter::open(Config::default().devices("2".parse()?))?;
    /// let gids = adapter.device().ports()[0].gids()?;
    /// assert_eq!((gids.len(), gids[0].gid), (1, "127.0.2.1".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel does not report its addresses.
    pub fn gids(&self) -> io::Result<Vec<GidEntry>> {
        self.inner().gids().entries()
    }

    /// Returns whether the port is active.
    ///
    /// ```
    /// # use ironwarp::prelude::*;
    /// let adapter = Adapter::open(Config::default().devices("2".parse()?))?;
    /// assert!(adapter.device().ports()[0].is_active()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the kernel does not report its interfaces.
    pub fn is_active(&self) -> io::Result<bool> {
        self.inner().is_active()
    }

    /// Takes the port down, or up again, for all adapters of this process that have the device open or open it later.
    /// Returns whether that is a change.
    ///
    /// While a port is down, nothing is sent or received there, as if its cable were unplugged: a request of either end
    /// fails when its retries are exceeded, unless the port is up before. New connections fail, and datagrams are lost.
    /// `ironwarp port` does the same from outside, and the setting [`port_plan`](crate::Config::port_plan) at given times.
    ///
    /// ```
    /// # use ironwarp::prelude::*;
    /// let adapter = Adapter::open(Config::default().devices("2 name=rail0".parse()?))?;
    /// let port = &adapter.device().ports()[0];
    /// assert!(port.set_up(false) && !port.is_active()?);
    /// assert!(port.set_up(true) && port.is_active()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_up(&self, up: bool) -> bool {
        self.device.set_port(self.number(), up).unwrap_or(false) // the device has the port
    }

    fn inner(&self) -> &ironwarp_engine::logical::RdmaPort {
        &self.device.ports()[self.at]
    }
}
