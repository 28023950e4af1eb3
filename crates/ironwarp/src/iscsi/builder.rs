//! The builder that creates queue pairs in iSCSI mode.

use super::queue_pair::IscsiQueuePair;
use crate::completion::CompletionQueue;
use crate::protection_domain::ProtectionDomain;
use crate::queue::{CreateError, DEFAULT_DEPTH, DEFAULT_MAX_SGES, RegistrationFailure};
use crate::shared::Shared;
use ironwarp_rnic::iscsi::{IscsiAttributes, SessionParameters};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Builds a queue pair in iSCSI mode: sets its attributes, then creates it.
/// [`ProtectionDomain::iscsi_queue_pair`] returns a builder.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use ironwarp::iscsi::SessionParameters;
/// use ironwarp::queue::RegistrationFailure;
/// use std::net::TcpStream;
///
/// # let address = ironwarp::example::iscsi_target()?;
/// # let adapter = ironwarp::Adapter::new()?;
/// let connection = TcpStream::connect(address)?; // then log in
/// let mut session = SessionParameters::default();
/// session.max_recv_data = 262_144; // what the login has negotiated
///
/// let cq = adapter.completion_queue(256)?;
/// let qp = adapter
///     .protection_domain()
///     .iscsi_queue_pair(&cq, session)
///     .receive_cq(&adapter.completion_queue(256)?)
///     .send_depth(64)
///     .receive_depth(128)
///     .max_sges(1)
///     .registration_failure(RegistrationFailure::Reactive)
///     .create(connection)?;
/// # let _ = qp;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is created until `create` is called"]
pub struct IscsiQueuePairBuilder {
    shared: Arc<Shared>,
    attributes: IscsiAttributes<CompletionQueue>,
}

impl IscsiQueuePairBuilder {
    /// Sets the completion queue for received PDUs. Defaults to the completion queue for commands that fail.
    pub fn receive_cq(mut self, cq: &CompletionQueue) -> Self {
        self.attributes.receive_cq = cq.clone();
        self
    }

    /// Sets the maximum number of commands that the target has not completed. Defaults to 128.
    pub fn send_depth(mut self, commands: usize) -> Self {
        self.attributes.send_depth = commands;
        self
    }

    /// Sets the depth of the receive queue, in receives. Defaults to 128.
    pub fn receive_depth(mut self, receives: usize) -> Self {
        self.attributes.receive_depth = receives;
        self
    }

    /// Sets the maximum number of scatter/gather elements of a command or a receive. Defaults to 16.
    pub fn max_sges(mut self, elements: usize) -> Self {
        self.attributes.max_sges = elements;
        self
    }

    /// Sets what happens if the memory of a command cannot be registered (requirement M7). Defaults to
    /// [`RegistrationFailure::Anticipatory`]: the connection ends.
    pub fn registration_failure(mut self, failure: RegistrationFailure) -> Self {
        self.attributes.registration_failure = failure;
        self
    }

    /// Creates the queue pair for a TCP connection on which the login is complete, and from which nothing after the last
    /// Login Response was read.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, ironwarp::iscsi::SessionParameters::default());
    /// # let cq = adapter.completion_queue(256)?;
    /// let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// println!("queue pair {}", qp.qpn());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if a completion queue belongs to another adapter, if the descriptor is not a connected TCP socket, or if a
    /// resource is not available.
    pub fn create(self, connection: impl Into<OwnedFd>) -> Result<IscsiQueuePair, CreateError> {
        let Self { shared, attributes } = self;
        let foreign_cq = |cq: &CompletionQueue| !Arc::ptr_eq(&cq.shared, &shared);
        if foreign_cq(&attributes.send_cq) || foreign_cq(&attributes.receive_cq) {
            return Err(CreateError::OtherAdapter);
        }
        let attributes = attributes.map_cqs(|cq| cq.inner);
        let inner = shared.engine.create_iscsi_qp(attributes, connection.into())?;
        Ok(IscsiQueuePair { inner, _shared: shared })
    }
}

// Not derived: prints the main attributes, without the state of the adapter.
impl fmt::Debug for IscsiQueuePairBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IscsiQueuePairBuilder")
            .field("send_cq", &self.attributes.send_cq)
            .field("receive_cq", &self.attributes.receive_cq)
            .field("session", &self.attributes.session)
            .finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// Returns a builder for a queue pair in iSCSI mode, for a session with these parameters. Its receives, and commands
    /// that fail, complete on `cq`, unless the builder sets another completion queue for receives.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let connection = std::net::TcpStream::connect(ironwarp::example::iscsi_target()?)?;
    /// # let (adapter, session) = (ironwarp::Adapter::new()?, ironwarp::iscsi::SessionParameters::default());
    /// let cq = adapter.completion_queue(256)?;
    /// let qp = adapter.protection_domain().iscsi_queue_pair(&cq, session).create(connection)?;
    /// assert_eq!(qp.error(), None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn iscsi_queue_pair(
        &self,
        cq: &CompletionQueue,
        session: SessionParameters,
    ) -> IscsiQueuePairBuilder {
        let attributes = IscsiAttributes {
            send_depth: DEFAULT_DEPTH,
            receive_depth: DEFAULT_DEPTH,
            max_sges: DEFAULT_MAX_SGES,
            ..IscsiAttributes::new(self.domain(), cq, session)
        };
        IscsiQueuePairBuilder { shared: Arc::clone(&self.shared), attributes }
    }
}
