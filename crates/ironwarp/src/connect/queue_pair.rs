//! How queue pairs connect and disconnect.

use super::manual::BringUpOptions;
use super::options::ConnectOptions;
use crate::queue::QueuePair;
use ironwarp_engine::{BringUpError, ConnectError, Established, Remote};
use ironwarp_rnic::qp::State;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The engine itself times out a startup; waiting a bit longer lets the caller see the engine's error.
const GRACE: Duration = Duration::from_secs(1);

impl QueuePair {
    /// Connects to a listener, and waits until the connection is established.
    /// [`Config::startup`](crate::Config::startup) limits the time.
    ///
    /// The error is shared with the queue pair and its events. After a timeout the queue pair cannot be used again.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let far = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || listener.accept(None).unwrap().accept(&far, &AcceptOptions::new()).map(|_| far));
    /// let qp = domain.queue_pair(&cq).create()?;
    /// let established = qp.connect(addr, &ConnectOptions::new().timeout(Duration::from_secs(5)))?;
    /// assert_eq!(established.peer, addr);
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(
        &self,
        to: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.start_connect(to, options)?;
        self.wait_connected(options.timeout.unwrap_or_else(|| self.startup_timeout()))
    }

    /// Starts to connect to a listener, without waiting. [`wait_connected`](Self::wait_connected) and the
    /// [events](crate::QueuePairBuilder::events) report the result.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let far = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || listener.accept(None).unwrap().accept(&far, &AcceptOptions::new()).map(|_| far));
    /// let qp = domain.queue_pair(&cq).create()?;
    /// qp.start_connect(addr, &ConnectOptions::new())?;
    /// // Start other connections in the meantime. A queue pair makes only one.
    /// assert!(qp.start_connect(addr, &ConnectOptions::new()).is_err());
    /// qp.wait_connected(Duration::from_secs(5))?;
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_connect(&self, to: SocketAddr, options: &ConnectOptions) -> Result<(), ConnectError> {
        self.claim()?;
        self.shared().engine.connect(self.inner(), to, &options.inner)
    }

    /// Starts to connect to a queue pair whose number and GID are known, without a connection manager. The peer does
    /// the same; neither end has to be first. [`wait_connected`](Self::wait_connected) and the
    /// [events](crate::QueuePairBuilder::events) report the result.
    ///
    /// The end with the smaller GID and number dials, the other listens at its GID and accepts only this peer. Requests
    /// can be posted at once. They wait for the connection: forever, or as long as [`set_retries`](Self::set_retries)
    /// allows.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::{Access, Adapter, BringUpOptions, Buffer, Remote, WorkRequest};
    /// use std::time::Duration;
    ///
    /// let soon = Duration::from_secs(5);
    /// let adapter = Adapter::new()?;
    /// let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// let region = domain.register(Buffer::new(4096)?, Access::LOCAL_WRITE)?;
    /// let (one, other) = (domain.queue_pair(&cq).manual().create()?, domain.queue_pair(&cq).manual().create()?);
    ///
    /// // The two ends exchange these out of band. On different hosts, each end passes one of its own GIDs, such as
    /// // `adapter.gids()?[0]`, which is also the default.
    /// let gid = "127.0.0.1".parse()?;
    /// let (to_one, to_other) = (Remote { gid, qpn: one.id() }, Remote { gid, qpn: other.id() });
    ///
    /// one.bring_up(to_other, &BringUpOptions::new().gid(gid))?;
    /// other.bring_up(to_one, &BringUpOptions::new().gid(gid))?;
    /// one.wait_connected(soon)?;
    /// other.wait_connected(soon)?;
    ///
    /// other.post_receive(1, &[region.slice(0, 4096)?])?;
    /// one.post_send(WorkRequest::send_inline(2, b"hello").unsignaled())?;
    /// assert_eq!(cq.wait(soon)?.expect("a message arrives").success()?.byte_len, 5);
    /// assert_eq!(&region.to_vec()?[..5], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn bring_up(&self, remote: Remote, options: &BringUpOptions) -> Result<(), BringUpError> {
        self.shared().engine.bring_up(self.inner(), remote, &options.inner)?;
        self.inner().modify(State::ReadyToSend)?;
        Ok(())
    }

    /// Returns the remote queue pair that [`bring_up`](Self::bring_up) was called with.
    pub fn remote(&self) -> Option<Remote> {
        self.inner().remote()
    }

    /// Waits until the queue pair is connected or has failed to connect. Returns [`ConnectError::TimedOut`] if
    /// `timeout` expires first.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ironwarp::{AcceptOptions, Adapter, ConnectError, ConnectOptions};
    /// # use std::time::Duration;
    /// # let adapter = Adapter::new()?;
    /// # let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    /// # let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    /// # let addr = listener.local_addr()?;
    /// # let far = domain.queue_pair(&cq).create()?;
    /// # let server = std::thread::spawn(move || listener.accept(None).unwrap().accept(&far, &AcceptOptions::new()).map(|_| far));
    /// let qp = domain.queue_pair(&cq).create()?;
    /// let error = qp.wait_connected(Duration::ZERO).unwrap_err();
    /// assert!(matches!(*error, ConnectError::TimedOut));
    /// qp.start_connect(addr, &ConnectOptions::new())?;
    /// assert_eq!(qp.wait_connected(Duration::from_secs(5))?.peer, addr);
    /// # server.join().unwrap().unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_connected(&self, timeout: Duration) -> Result<Arc<Established>, Arc<ConnectError>> {
        self.inner().wait_connected(timeout)
    }

    /// Closes the connection after sending all posted requests. Requests posted later are refused, or flushed once the
    /// peer has closed as well. Incoming messages are received until then.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// # use ironwarp::WorkRequest;
    /// # use std::time::Duration;
    /// # server.qp.post_receive(1, &[])?;
    /// client.qp.post_send(WorkRequest::send(1, &[]))?;
    /// client.qp.disconnect();
    /// // Requests posted before still arrive.
    /// assert!(server.cq.wait(Duration::from_secs(5))?.expect("in time").success().is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn disconnect(&self) {
        self.inner().disconnect();
    }

    /// Waits until both directions of the connection are closed. Returns false if `timeout` expires first.
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
    pub fn wait_closed(&self, timeout: Duration) -> bool {
        self.inner().wait_closed(timeout)
    }

    /// Upper bound on the duration of a startup.
    pub(super) fn startup_timeout(&self) -> Duration {
        self.shared().engine.config().startup + GRACE
    }
}
