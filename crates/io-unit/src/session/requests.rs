//! Configuration and utility requests: always answered (requirement P8).

use super::action::Action;
use super::channel::Channel;
use super::error::{Reason, Violation};
use super::state::{Awaited, Phase, Session, Side};
use crate::message::{Function, Mac, Message, Operation, Reply, Request, Status};

/// Smallest MTU: IPv4 needs it (RFC 791).
const MIN_MTU: u32 = 68;

impl Session {
    /// Sends a SetMac, Mtu or Statistics request; the unit may send Statistics only. Returns the context of its
    /// [`Action::Answer`].
    pub fn request(&mut self, request: &Request) -> Result<u64, Status> {
        let at_host = matches!(self.side, Side::Host { .. });
        let operation = match request {
            Request::Statistics => Operation::Statistics,
            Request::SetMac(_) if at_host => Operation::SetMac,
            Request::Mtu(_) if at_host => Operation::Mtu,
            _ => return Err(Status::Unsupported),
        };
        if !matches!(self.phase, Phase::Attached | Phase::Open) {
            return Err(Status::WrongState);
        }
        Ok(self.ask(request, Channel::Control, operation))
    }

    /// Answers a request of the peer on the control channel.
    pub(super) fn on_request(&mut self, context: u64, request: Request) {
        let operation = request.operation();
        let answer = match (&self.side, request) {
            (_, Request::Statistics) if self.is_attached() => Ok(Reply::Statistics(self.statistics())),
            (_, Request::Unknown { .. } | Request::Join(_)) | (Side::Host { .. }, _) => {
                Err(Status::Unsupported)
            }
            (Side::Unit { nonce, .. }, Request::Challenge) if self.phase == Phase::New => {
                let nonce = *nonce;
                self.phase = Phase::Challenged;
                Ok(Reply::Challenge(nonce))
            }
            (_, Request::Attach(attach)) => return self.on_attach(context, attach),
            _ if !self.is_attached() => Err(Status::WrongState),
            (_, Request::SetMac(mac)) => self.set_mac(mac),
            (_, Request::Mtu(mtu)) => self.set_mtu(mtu),
            (_, Request::Detach) => return self.on_detach(context),
            (_, Request::Challenge | Request::Statistics) => Err(Status::WrongState),
        };
        match answer {
            Ok(reply) => self.post(Channel::Control, context, &Message::Reply(reply)),
            Err(status) => self.fail(context, operation, status),
        }
    }

    fn set_mac(&mut self, mac: Mac) -> Result<Reply, Status> {
        let Side::Unit { admission: Some(admission), .. } = &self.side else {
            return Err(Status::WrongState);
        };
        let attached = self.attached.as_mut().ok_or(Status::WrongState)?;
        if !admission.allowed.contains(&mac) {
            return Err(Status::NotAllowed);
        }
        attached.macs = vec![mac];
        self.act(Action::SetMac(mac));
        Ok(Reply::SetMac)
    }

    fn set_mtu(&mut self, mtu: u32) -> Result<Reply, Status> {
        let attached = self.attached.as_mut().ok_or(Status::WrongState)?;
        match mtu {
            0 => {}
            mtu if (MIN_MTU..=self.config.mtu).contains(&mtu) => attached.mtu = mtu,
            _ => return Err(Status::OutOfRange),
        }
        Ok(Reply::Mtu(attached.mtu))
    }

    /// Handles the answer to a request of this end.
    pub(super) fn on_reply(&mut self, channel: Channel, context: u64, reply: Reply) -> Result<(), Violation> {
        let function = Function::CfgUtilReply;
        let is_join = reply.operation() == Operation::Join as u16;
        if is_join != (channel == Channel::Data) {
            return Err(Violation::Unexpected { function, channel });
        }
        let Awaited::Reply(expected) =
            self.answered(function, context, |awaited| matches!(awaited, Awaited::Reply(_)))?
        else {
            return Err(Violation::UnexpectedReply { function, context });
        };
        let found = reply.operation();
        if found != expected {
            return Err(Violation::WrongReply { found, expected });
        }
        match reply {
            Reply::Challenge(nonce) => self.on_challenge(nonce),
            Reply::Attach(admitted) => self.on_admitted(admitted),
            Reply::Join => {
                if self.phase == Phase::Attached {
                    self.open();
                }
            }
            Reply::Detach => self.end(Reason::Detached),
            Reply::Failed { status, .. } if is_attaching(expected) => self.end(Reason::Refused(status)),
            Reply::Mtu(mtu) => {
                self.attached.iter_mut().for_each(|attached| attached.mtu = mtu);
                self.act(Action::Answer { context, reply });
            }
            reply => self.act(Action::Answer { context, reply }),
        }
        Ok(())
    }
}

/// Returns whether the session cannot go on without the operation.
fn is_attaching(operation: u16) -> bool {
    [Operation::Challenge, Operation::Attach, Operation::Join, Operation::Detach]
        .iter()
        .any(|needed| *needed as u16 == operation)
}
