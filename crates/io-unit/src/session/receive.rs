//! Messages that arrive on either channel.

use super::action::{Action, Frame};
use super::channel::Channel;
use super::error::{Reason, Violation};
use super::state::{Phase, Session, violated};
use crate::message::{Function, Immediate, Indication, MAX_INLINE_FRAME, Message, Mode, SEND_DATA_HEADER};

impl Session {
    /// Handles a message. In Send mode, those on the data channel are in the elements that
    /// [`Action::PostReceive`] named, in that order.
    pub fn receive(&mut self, channel: Channel, bytes: &[u8]) {
        if self.phase == Phase::Ended {
            return;
        }
        if let Err(violation) = self.handle(channel, bytes) {
            self.end(Reason::Violation(violation));
        }
        self.settle();
    }

    /// Handles the immediate data of a Write.
    pub fn immediate(&mut self, value: u32) {
        if self.phase == Phase::Ended {
            return;
        }
        let result = if self.mode == Mode::Rdma && self.is_receiving() {
            self.on_indication(Immediate(value).indication())
        } else {
            Err(Violation::Immediate { value })
        };
        if let Err(violation) = result {
            self.end(Reason::Violation(violation));
        }
        self.settle();
    }

    fn handle(&mut self, channel: Channel, bytes: &[u8]) -> Result<(), Violation> {
        let (context, message) = Message::decode(bytes)?;
        let function = message.function();
        match (channel, message) {
            (Channel::Control, Message::Request(request)) => self.on_request(context, request),
            (_, Message::Reply(reply)) => self.on_reply(channel, context, reply)?,
            (Channel::Control, Message::Pools(pools)) if self.is_attached() => self.on_pools(&pools)?,
            (Channel::Control, Message::PoolGet { element_size, .. }) if self.is_attached() => {
                self.on_pool_get(element_size);
            }
            (Channel::Control, Message::Update(entries)) if self.is_attached() => {
                entries.iter().try_for_each(|entry| self.sender.update(entry)).map_err(violated(function))?;
            }
            (Channel::Control, Message::FlushRequest(pools)) if self.is_attached() => {
                self.on_flush_request(context, &pools).map_err(violated(function))?;
            }
            (Channel::Control, Message::FlushReply) => self.on_flush_reply(context)?,
            (Channel::Data, Message::SendData(frame)) if self.is_receiving() => self.on_send_data(frame)?,
            (Channel::Data, Message::Indicate(indication))
                if self.is_receiving() && self.mode == Mode::Rdma =>
            {
                self.on_indication(indication)?;
            }
            _ => return Err(Violation::Unexpected { function, channel }),
        }
        Ok(())
    }

    fn on_send_data(&mut self, frame: &[u8]) -> Result<(), Violation> {
        let too_long = Violation::InlineLength { len: frame.len(), max: MAX_INLINE_FRAME };
        let len = u32::try_from(frame.len()).map_err(|_| too_long.clone())?;
        let frame = match self.mode {
            Mode::Rdma if (1..=MAX_INLINE_FRAME).contains(&frame.len()) => Frame::Inline(frame.to_vec()),
            Mode::Rdma => return Err(too_long),
            Mode::Send => {
                let consumed = self.owner.consume_posted(len);
                let (pool, element) = consumed.map_err(violated(Function::SendData))?;
                #[expect(clippy::cast_possible_truncation, reason = "16 bytes")]
                let offset = SEND_DATA_HEADER as u32;
                Frame::Element { pool, element, offset, len }
            }
        };
        self.deliver(frame, len);
        Ok(())
    }

    fn on_indication(&mut self, indication: Indication) -> Result<(), Violation> {
        self.owner.consume(indication).map_err(violated(Function::BufferRdmaIndicate))?;
        let Indication { pool, element, len } = indication;
        self.deliver(Frame::Element { pool, element, offset: 0, len }, len);
        Ok(())
    }

    fn deliver(&mut self, frame: Frame, len: u32) {
        self.counters.frames_received += 1;
        self.counters.bytes_received += u64::from(len);
        self.act(Action::Deliver(frame));
    }
}
