//! How an attempt to connect a queue pair manually begins.

use super::attempt::{ManualAttempt, Progress};
use super::error::BringUpError;
use super::loopback::SelfConnect;
use super::port::{Expecting, ManualPort};
use crate::cm::context::CmContext;
use crate::cm::dial::DialTarget;
use crate::cm::handshake::Handshake;
use crate::cm::proof::Ends;
use crate::gid::{GidTable, socket_addr};
use crate::sys::random::random;
use crate::verbs::error::ConnectError;
use crate::verbs::manual::{Attempt, BringUpOptions, Local, ManualConnect, Remote};
use crate::verbs::qpn::{MAX_QPN, port_of};
use crate::verbs::queue_pair::QueuePair;
use ironwarp_rnic::qp::{IllegalTransition, State};
use ironwarp_wire::private::{Hello, HelloKind, Reason};
use std::io;
use std::sync::{Arc, Mutex};

/// How an attempt begins.
enum First {
    Wait,
    Dial(Box<dyn Handshake>),
    /// It did not work the first time.
    DialAgain(ConnectError),
}

/// Moves an initialised queue pair to [`State::ReadyToReceive`], and begins to connect it to one that is told the same about this one.
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
    // Everything that can be wrong has been found. What comes from the peer finds the queue pair ready.
    pair.qp().modify(to)?;
    let remote = Remote { gid: attempt.remote.ip().into(), qpn: attempt.hello.destination };
    let known: Arc<dyn Attempt> = Arc::<ManualAttempt>::clone(&attempt);
    pair.set_manual(ManualConnect { remote, options: *options, attempt: known });
    let expecting: Arc<dyn Expecting> = Arc::<ManualAttempt>::clone(&attempt);
    port.expect(attempt.number(), &expecting);
    attempt.begin(ctx, first);
    Ok(())
}

impl ManualAttempt {
    fn new(
        ctx: &Arc<CmContext>,
        pair: &Arc<QueuePair>,
        manual_port: &Arc<ManualPort>,
        remote: Remote,
        options: &BringUpOptions,
    ) -> Result<Self, BringUpError> {
        let (gid, interface) = match options.local {
            Local::Index(index) => {
                let entry = GidTable::of_process().get(index)?.ok_or(BringUpError::NoGid(index))?;
                (entry.gid, entry.interface_index)
            }
            Local::Gid(gid) => {
                let entry = GidTable::of_process().find(gid)?;
                (gid, entry.map_or(0, |entry| entry.interface_index))
            }
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
        // A number without a port is not that of a queue pair. As with hardware, that shows when something is sent.
        let remote_port = port_of(remote.qpn);
        let mut progress = Progress::new(random()?);
        if remote_port.is_none() {
            progress.refused = Some(ConnectError::Refused(Reason::NoQueuePair));
        }
        let terms = ctx.terms(options.ird, options.ord);
        terms.check()?;
        let dials = remote_port.is_some() && (gid, number) < (remote.gid, remote.qpn);
        Ok(Self {
            ctx: Arc::downgrade(ctx),
            pair: Arc::downgrade(pair),
            port: Arc::downgrade(manual_port),
            local: socket_addr(own, port, interface),
            // A link-local address is on the same link.
            remote: socket_addr(other, remote_port.unwrap_or(0), interface),
            hello: Hello::new(HelloKind::Dial, remote.qpn, number),
            ends: if dials {
                Ends { dialler: (gid, number), acceptor: (remote.gid, remote.qpn) }
            } else {
                Ends { dialler: (remote.gid, remote.qpn), acceptor: (gid, number) }
            },
            terms,
            options: *options,
            dials,
            progress: Mutex::new(progress),
            starting: Mutex::default(),
        })
    }

    /// Finds everything that can be wrong with the local address, so that it is reported at once.
    fn prepare(
        self: &Arc<Self>,
        ctx: &Arc<CmContext>,
        port: &Arc<ManualPort>,
    ) -> Result<First, BringUpError> {
        let to_itself = self.hello.source == self.hello.destination && self.local == self.remote;
        if to_itself {
            let target: Arc<dyn DialTarget> = Arc::<Self>::clone(self);
            return Ok(First::Dial(SelfConnect::new(ctx, target, self.terms, self.local)?));
        }
        if !self.dials {
            port.listen(self.local)?;
            return Ok(First::Wait);
        }
        match self.new_dial(ctx) {
            Ok(dial) => Ok(First::Dial(dial)),
            Err(ConnectError::InvalidArgument(error)) => Err(error.into()),
            Err(ConnectError::System(error)) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                Err(error.into())
            }
            Err(error) => Ok(First::DialAgain(error)),
        }
    }

    fn begin(self: &Arc<Self>, ctx: &CmContext, first: First) {
        let begun = match first {
            First::Wait => Ok(()),
            First::Dial(handshake) => ctx.begin(handshake).map_err(Into::into),
            First::DialAgain(error) => Err(error),
        };
        if let Err(error) = begun {
            self.handshake_failed(error);
        }
        self.change_patience();
    }
}
