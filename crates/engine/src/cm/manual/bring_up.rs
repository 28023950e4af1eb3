//! Begins the manual connection of a queue pair: checks the arguments, then dials or listens (`attempt.rs` continues).

use super::attempt::{ManualAttempt, Progress};
use super::error::BringUpError;
use super::loopback::SelfConnect;
use super::port::{Expecting, ManualPort};
use crate::cm::context::CmContext;
use crate::cm::dial::DialTarget;
use crate::cm::handshake::Handshake;
use crate::cm::proof::{Ends, QpAddress};
use crate::gid::socket_addr;
use crate::sys::random::random;
use crate::verbs::error::ConnectError;
use crate::verbs::manual::{Attempt, BringUpOptions, Local, ManualConnect, Remote};
use crate::verbs::qpn::{MAX_QPN, port_of};
use crate::verbs::queue_pair::QueuePair;
use ironwarp_rnic::qp::{IllegalTransition, State};
use ironwarp_wire::private::{Hello, HelloKind, Reason};
use std::io;
use std::sync::{Arc, Mutex};

/// The first step of an attempt.
enum FirstStep {
    /// Waits for the peer, which dials.
    Listen,
    /// Begins this handshake.
    Dial(Box<dyn Handshake>),
    /// Dials again later: the first dial failed with this error, for a reason that may pass.
    Redial(ConnectError),
}

/// Moves an initialised queue pair to [`State::ReadyToReceive`], and begins to connect it to `remote`. The remote
/// program has to name this queue pair likewise. Returns once the attempt has begun.
pub(crate) fn bring_up(
    ctx: &Arc<CmContext>,
    pair: &Arc<QueuePair>,
    port: &Arc<ManualPort>,
    remote: Remote,
    options: &BringUpOptions,
) -> Result<(), BringUpError> {
    let (from, to) = (pair.qp().state(), State::ReadyToReceive);
    if !from.may_become(to) {
        return Err(IllegalTransition { from, to }.into());
    }
    let attempt = Arc::new(ManualAttempt::new(ctx, pair, port, remote, options)?);
    let first = attempt.prepare(ctx, port)?;
    // All arguments are checked. The state changes before the peer can connect: the queue pair has to be ready then.
    pair.qp().modify(to)?;
    let remote = Remote { gid: attempt.remote.ip().into(), qpn: attempt.hello.destination };
    let for_pair: Arc<dyn Attempt> = Arc::<ManualAttempt>::clone(&attempt);
    pair.set_manual(ManualConnect { remote, options: *options, attempt: for_pair });
    let expecting: Arc<dyn Expecting> = Arc::<ManualAttempt>::clone(&attempt);
    port.start_expecting(attempt.number(), &expecting);
    attempt.begin(ctx, first);
    Ok(())
}

impl ManualAttempt {
    /// Checks the arguments, and decides which end dials. Opens no socket.
    fn new(
        ctx: &Arc<CmContext>,
        pair: &Arc<QueuePair>,
        manual_port: &Arc<ManualPort>,
        remote: Remote,
        options: &BringUpOptions,
    ) -> Result<Self, BringUpError> {
        let (gid, interface) = match options.local {
            Local::Index { port, index } => {
                let port = ctx.logical().port(port).ok_or(BringUpError::NoSuchPort(port))?;
                let entry = port.gids().get(index)?.ok_or(BringUpError::NoGid(index))?;
                (entry.gid, entry.interface_index)
            }
            Local::Gid(gid) => match ctx.logical().find_gid(gid)? {
                Some((_, entry)) => (gid, entry.interface_index),
                None if ctx.logical().has_all_addresses() => (gid, 0),
                None => return Err(BringUpError::OtherDevice(gid)),
            },
        };
        let (own, other) = match (gid.ip(), remote.gid.ip()) {
            (Some(own), Some(other)) if own.is_ipv4() == other.is_ipv4() => (own, other),
            _ => return Err(BringUpError::OtherVersion { local: gid, remote: remote.gid }),
        };
        let number = pair.id();
        let port = port_of(number).ok_or(BringUpError::NoPort)?;
        if remote.qpn > MAX_QPN {
            return Err(BringUpError::InvalidQpn(remote.qpn));
        }
        // No queue pair can be dialled at a number without a port. As with hardware, the program learns that when it
        // sends something.
        let remote_port = port_of(remote.qpn);
        let mut progress = Progress::new(random()?);
        if remote_port.is_none() {
            progress.lasting_error = Some(ConnectError::Refused(Reason::NoQueuePair));
        }
        let terms = ctx.terms(options.ird, options.ord);
        terms.check()?;
        let own_end = QpAddress { gid, qpn: number };
        let remote_end = QpAddress { gid: remote.gid, qpn: remote.qpn };
        let dials = remote_port.is_some() && own_end < remote_end;
        Ok(Self {
            ctx: Arc::downgrade(ctx),
            pair: Arc::downgrade(pair),
            port: Arc::downgrade(manual_port),
            local: socket_addr(own, port, interface),
            // If the remote address is link-local, it is on the link of the local interface.
            remote: socket_addr(other, remote_port.unwrap_or(0), interface),
            hello: Hello::new(HelloKind::Dial, remote.qpn, number),
            ends: if dials {
                Ends { dialler: own_end, acceptor: remote_end }
            } else {
                Ends { dialler: remote_end, acceptor: own_end }
            },
            terms,
            options: *options,
            dials,
            progress: Mutex::new(progress),
            starting: Mutex::default(),
        })
    }

    /// Opens the first socket, so that an invalid local address is reported at once. Returns how the attempt begins.
    fn prepare(
        self: &Arc<Self>,
        ctx: &Arc<CmContext>,
        port: &Arc<ManualPort>,
    ) -> Result<FirstStep, BringUpError> {
        let to_itself = self.hello.source == self.hello.destination && self.local == self.remote;
        if to_itself {
            let target: Arc<dyn DialTarget> = Arc::<Self>::clone(self);
            return Ok(FirstStep::Dial(SelfConnect::new(ctx, target, self.terms, self.local)?));
        }
        if !self.dials {
            port.listen(self.local)?;
            return Ok(FirstStep::Listen);
        }
        match self.new_dial(ctx) {
            Ok(dial) => Ok(FirstStep::Dial(dial)),
            Err(ConnectError::InvalidArgument(error)) => Err(error.into()),
            Err(ConnectError::System(error)) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                Err(BringUpError::System(error))
            }
            Err(error) => Ok(FirstStep::Redial(error)),
        }
    }

    /// Takes the first step, and starts the timeout for work requests.
    fn begin(self: &Arc<Self>, ctx: &CmContext, first: FirstStep) {
        let begun = match first {
            FirstStep::Listen => Ok(()),
            FirstStep::Dial(handshake) => ctx.begin_handshake(handshake).map_err(Into::into),
            FirstStep::Redial(error) => Err(error),
        };
        if let Err(error) = begun {
            self.on_handshake_failed(error);
        }
        self.restart_request_timeout();
    }
}
