//! Attaching: challenge, Attach, admission, and the Join of the data channel.

use super::action::Action;
use super::channel::Channel;
use super::error::{Reason, Violation};
use super::state::{Attached, Awaited, Phase, Session, Side};
use crate::auth::{Admission, Purpose};
use crate::message::{Admitted, Attach, Join, Message, Nonce, Operation, Proof, Reply, Request, Status};
use crate::pool::{Owner, Sender};

/// Decodes the first message of a data channel: its context, and the session that it belongs to.
pub fn join_request(bytes: &[u8]) -> Result<(u64, Join), Violation> {
    match Message::decode(bytes)? {
        (context, Message::Request(Request::Join(join))) => Ok((context, join)),
        (_, other) => Err(Violation::Unexpected { function: other.function(), channel: Channel::Data }),
    }
}

impl Session {
    /// Answers a challenge with an Attach. At the host.
    pub(super) fn on_challenge(&mut self, unit: Nonce) {
        let Side::Host { identity, attach: sent } = &mut self.side else { return };
        let mut attach = Attach {
            mode: identity.mode,
            offloads: self.config.offloads,
            nonce: identity.nonce,
            name: identity.name.clone(),
            macs: identity.macs.clone(),
            proof: Proof([0; 32]),
        };
        attach.proof = identity.key.proof(Purpose::Attach, unit, &attach);
        *sent = Some((attach.clone(), unit));
        self.phase = Phase::Challenged;
        self.ask(&Request::Attach(Box::new(attach)), Channel::Control, Operation::Attach);
    }

    /// Checks that the unit knows the key, and connects the data channel. At the host.
    pub(super) fn on_admitted(&mut self, admitted: Admitted) {
        let Side::Host { identity, attach: Some((attach, unit)) } = &self.side else { return };
        if !identity.key.verify(&admitted.proof, Purpose::Admit(&admitted), *unit, attach) {
            return self.end(Reason::WrongUnit);
        }
        let Admitted { session, generation, offloads, mtu, .. } = admitted;
        let offloads = offloads & self.config.offloads;
        let macs = identity.macs.clone();
        self.attached = Some(Attached { session, generation, offloads, mtu, macs });
        self.phase = Phase::Attached;
        self.act(Action::ConnectData);
    }

    /// The data channel is connected. At the host.
    pub fn data_connected(&mut self) {
        let Side::Host { identity, attach: Some((attach, unit)) } = &self.side else { return };
        let Some((session, generation)) = self.number().filter(|_| self.phase == Phase::Attached) else {
            return;
        };
        let mut join = Join { session, generation, proof: Proof([0; 32]) };
        join.proof = identity.key.proof(Purpose::Join(&join), *unit, attach);
        self.ask(&Request::Join(join), Channel::Data, Operation::Join);
    }

    /// Frames can be exchanged: registers the pools of this end.
    pub(super) fn open(&mut self) {
        self.phase = Phase::Open;
        for shape in self.config.shapes(self.mode) {
            self.register(shape);
        }
    }

    /// Passes an Attach to the driver, or refuses it because of the state. At the unit.
    pub(super) fn on_attach(&mut self, context: u64, request: Box<Attach>) {
        match &mut self.side {
            Side::Unit { nonce, attach: attach @ None, .. } if self.phase == Phase::Challenged => {
                *attach = Some((request.clone(), context));
                let nonce = *nonce;
                self.act(Action::Authenticate { attach: request, nonce });
            }
            _ => self.fail(context, Operation::Attach as u16, Status::WrongState),
        }
    }

    /// Admits the host whose Attach [`Action::Authenticate`] has passed on. At the unit. The driver ends the session that
    /// this one replaces, with [`Reason::Replaced`].
    pub fn admit(&mut self, admission: Admission) {
        if self.phase != Phase::Challenged {
            return;
        }
        let Side::Unit { nonce, attach: Some((attach, context)), admission: admitted, .. } = &mut self.side
        else {
            return;
        };
        let Admission { session, generation, .. } = admission;
        let offloads = attach.offloads & self.config.offloads;
        let mtu = self.config.mtu;
        let mut reply = Admitted { session, generation, offloads, mtu, proof: Proof([0; 32]) };
        reply.proof = admission.key.proof(Purpose::Admit(&reply), *nonce, attach);
        let context = *context;
        self.mode = attach.mode;
        self.attached = Some(Attached { session, generation, offloads, mtu, macs: attach.macs.clone() });
        *admitted = Some(admission);
        self.owner = Owner::new(self.mode);
        self.sender = Sender::new(self.mode);
        self.phase = Phase::Attached;
        self.pending.clear();
        self.expect(0, Awaited::Join);
        self.post(Channel::Control, context, &Message::Reply(Reply::Attach(reply)));
    }

    /// Refuses the host whose Attach [`Action::Authenticate`] has passed on, and ends the session. At the unit.
    pub fn refuse(&mut self, status: Status) {
        if let Side::Unit { attach: Some((_, context)), .. } = &self.side {
            self.fail(*context, Operation::Attach as u16, status);
            self.end(Reason::Refused(status));
        }
    }

    /// Ties a data channel to this session. At the unit. An error concerns that data channel alone, and the session goes
    /// on: whoever sent it has not proved to be the host.
    pub fn join(&mut self, context: u64, join: &Join) -> Result<(), Status> {
        let Side::Unit { nonce, attach: Some((attach, _)), admission: Some(admission), .. } = &self.side
        else {
            return Err(Status::WrongState);
        };
        let named = self.number() == Some((join.session, join.generation));
        if !named || !admission.key.verify(&join.proof, Purpose::Join(join), *nonce, attach) {
            return Err(Status::AuthenticationFailed);
        }
        if self.phase != Phase::Attached {
            return Err(Status::WrongState);
        }
        self.pending.retain(|pending| pending.awaited != Awaited::Join);
        self.post(Channel::Data, context, &Message::Reply(Reply::Join));
        self.open();
        self.settle();
        Ok(())
    }

    pub(super) fn fail(&mut self, context: u64, operation: u16, status: Status) {
        self.post(Channel::Control, context, &Message::Reply(Reply::Failed { operation, status }));
    }
}
