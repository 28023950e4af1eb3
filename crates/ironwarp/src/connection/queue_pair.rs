//! The methods of queue pairs that connect and disconnect.

use super::options::{BringUpOptions, ConnectOptions};
use crate::queue::QueuePair;
use ironwarp_engine::{BringUpError, ConnectError, Established, Remote};
use ironwarp_rnic::qp::State;
use std::net::SocketAddr;
use std::time::Duration;

/// How much longer than [`Config::startup`](crate::Config::startup) a caller waits for a connection. The engine ends a
/// startup that takes too long, and reports why. With the grace the caller receives that report, not a plain timeout.
const GRACE: Duration = Duration::from_secs(1);

impl QueuePair {
    /// Connects to a listener, and waits until the connection is established: for [`ConnectOptions::timeout`], but at
    /// most for [`Config::startup`](crate::Config::startup).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let remote = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || {
    /// #     listener.accept(None).unwrap().accept(&remote, &AcceptOptions::new()).map(|_| remote)
    /// # });
    /// let qp = domain.queue_pair(&cq).create()?;
    /// let established = qp.connect(addr, &ConnectOptions::new().timeout(Duration::from_secs(5)))?;
    /// assert_eq!(established.peer, addr);
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails like [`start_connect`](Self::start_connect). Also fails if nobody listens at the address, or if the peer
    /// rejects the connection or does not answer in time. The queue
    /// pair cannot connect again: create another.
    pub fn connect(&self, to: SocketAddr, options: &ConnectOptions) -> Result<Established, ConnectError> {
        self.start_connect(to, options)?;
        self.wait_connected(options.timeout.unwrap_or_else(|| self.startup_timeout()))
    }

    /// Starts to connect to a listener, and returns without waiting. [`wait_connected`](Self::wait_connected) and the
    /// [events](crate::queue::QueuePairBuilder::events) report the result.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let remote = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || {
    /// #     listener.accept(None).unwrap().accept(&remote, &AcceptOptions::new()).map(|_| remote)
    /// # });
    /// let qp = domain.queue_pair(&cq).create()?;
    /// qp.start_connect(addr, &ConnectOptions::new())?;
    /// // Start to connect other queue pairs in the meantime. Each queue pair makes only one attempt.
    /// assert!(qp.start_connect(addr, &ConnectOptions::new()).is_err());
    /// qp.wait_connected(Duration::from_secs(5))?;
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue pair is or was connected, or has tried to connect; if the private data or a depth of
    /// `options` is invalid; if the address to connect from belongs to another logical device; or if the kernel refuses
    /// to connect.
    pub fn start_connect(&self, to: SocketAddr, options: &ConnectOptions) -> Result<(), ConnectError> {
        self.claim()?;
        self.shared().engine.connect(self.inner(), to, &options.inner)
    }

    /// Starts to connect to the queue pair with this number and GID, without the connection manager. The remote program
    /// must call `bring_up` for this queue pair, before or after. [`wait_connected`](Self::wait_connected) and the
    /// [events](crate::queue::QueuePairBuilder::events) report the result.
    ///
    /// The end with the smaller GID and number dials; the other end listens at its GID and accepts only this peer.
    /// Requests can be posted at once. They wait for the connection: forever, or as long as
    /// [`set_retries`](Self::set_retries) allows.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::connection::{BringUpOptions, Remote};
    /// use ironwarp::prelude::*;
    /// use std::time::Duration;
    ///
    /// let timeout = Duration::from_secs(5);
    /// let adapter = Adapter::new()?;
    /// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
    /// let (one, other) = (domain.queue_pair(&cq).manual().create()?, domain.queue_pair(&cq).manual().create()?);
    ///
    /// // The two ends exchange GID and number out of band. Here both use the loopback address. On different hosts,
    /// // each end uses one of its own GIDs. The default is `adapter.gids()?[0]`.
    /// let gid = "127.0.0.1".parse()?;
    /// let (to_one, to_other) = (Remote { gid, qpn: one.id() }, Remote { gid, qpn: other.id() });
    ///
    /// one.bring_up(to_other, &BringUpOptions::new().gid(gid))?;
    /// other.bring_up(to_one, &BringUpOptions::new().gid(gid))?;
    /// one.wait_connected(timeout)?;
    /// other.wait_connected(timeout)?;
    ///
    /// other.post_receive(1, &[region.slice(..4096)?])?;
    /// one.post_send(WorkRequest::send_inline(2, b"hello").unsignaled())?;
    /// assert_eq!(cq.wait(timeout)?.success()?.byte_len, 5);
    /// assert_eq!(&region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the queue pair was not created for [manual](crate::queue::QueuePairBuilder::manual) connection, or was
    /// connected before; if the local GID does not exist, belongs to another logical device, or has another IP version
    /// than the remote one; if the remote number or a depth of `options` is invalid; or if the kernel refuses a
    /// resource.
    pub fn bring_up(&self, remote: Remote, options: &BringUpOptions) -> Result<(), BringUpError> {
        self.shared().engine.bring_up(self.inner(), remote, &options.inner)?;
        self.inner().modify(State::ReadyToSend)?;
        Ok(())
    }

    /// Returns the remote queue pair that [`bring_up`](Self::bring_up) was called with, or `None` if it was not called.
    pub fn remote(&self) -> Option<Remote> {
        self.inner().remote()
    }

    /// Waits until the queue pair is connected, and returns the parameters of the connection. A timeout of `None` waits
    /// forever.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::connection::ConnectError;
    /// # use ironwarp::prelude::*;
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let remote = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || {
    /// #     listener.accept(None).unwrap().accept(&remote, &AcceptOptions::new()).map(|_| remote)
    /// # });
    /// let qp = domain.queue_pair(&cq).create()?;
    /// let error = qp.wait_connected(Duration::ZERO).unwrap_err();
    /// assert!(matches!(error, ConnectError::TimedOut));
    /// qp.start_connect(addr, &ConnectOptions::new())?;
    /// assert_eq!(qp.wait_connected(Duration::from_secs(5))?.peer, addr);
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`ConnectError::TimedOut`] if `timeout` expires first, or the reason if the queue pair failed to
    /// connect.
    pub fn wait_connected(&self, timeout: impl Into<Option<Duration>>) -> Result<Established, ConnectError> {
        self.inner().wait_connected(timeout)
    }

    /// Closes the connection in this direction after sending all posted requests, and returns without waiting. Incoming
    /// messages are still received until the peer closes the other direction. Requests posted after this call are
    /// refused; requests posted after both directions are closed are flushed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::queue::WorkRequest;
    /// # use std::time::Duration;
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(WorkRequest::send(1, &[]))?;
    /// client.qp.disconnect();
    /// // Requests posted before the call still arrive.
    /// assert!(server.cq.wait(Duration::from_secs(5))?.success().is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn disconnect(&self) {
        self.inner().disconnect();
    }

    /// Waits until both directions of the connection are closed. Returns true then, and false if `timeout` expires
    /// first. A timeout of `None` waits forever.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use std::time::Duration;
    /// client.qp.disconnect();
    /// server.qp.disconnect();
    /// assert!(client.qp.wait_closed(Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the connection may not have closed in time"]
    pub fn wait_closed(&self, timeout: impl Into<Option<Duration>>) -> bool {
        self.inner().wait_closed(timeout)
    }

    /// Returns how long to wait for a connection: [`Config::startup`](crate::Config::startup), and some grace.
    pub(super) fn startup_timeout(&self) -> Duration {
        self.shared().engine.config().startup + GRACE
    }
}
