//! Pools of both ends: registration, updates, flush, and detaching (requirement P6).

use super::action::Action;
use super::channel::Channel;
use super::error::{Reason, Violation};
use super::state::{Awaited, MAX_CONTROL, PeerFlush, Phase, Session, Side, violated};
use crate::message::{
    Function, HEADER, MAX_MESSAGE, Message, Mode, Operation, PoolEntry, Reply, Request, Status, UpdateEntry,
};
use crate::pool::{PoolError, Shape};

/// Set in a pool reference of a FlushRequest if the receiver of the request owns the pool.
const YOURS: u32 = 1 << 31;
/// Maximum number of entries of an Update.
const MAX_ENTRIES: usize = (MAX_MESSAGE - HEADER) / UpdateEntry::LEN;

impl Session {
    /// The memory of a pool is registered: [`Action::RegisterPool`] asked for it. `offset` is that of element 0 within
    /// `tag`. Both are ignored in Send mode.
    pub fn pool_registered(&mut self, pool: u32, tag: u32, offset: u64) {
        let generation = self.number().map_or(0, |(_, generation)| generation);
        if self.phase != Phase::Open {
            self.owner.drain(pool);
        } else if let Some(entry) = self.owner.advertise(pool, tag, offset, generation) {
            if self.mode == Mode::Send {
                (0..entry.count).for_each(|element| self.act(Action::PostReceive { pool, element }));
            }
            self.post(Channel::Control, 0, &Message::Pools(vec![entry]));
        }
        self.settle();
    }

    /// The memory of a pool could not be registered.
    pub fn pool_failed(&mut self, pool: u32) {
        self.owner.failed(pool);
        self.settle();
    }

    /// The application has finished with the frame in an element.
    pub fn release(&mut self, pool: u32, element: u32) -> Result<(), PoolError> {
        self.owner.release(pool, element)?;
        self.settle();
        Ok(())
    }

    /// Frees a pool of this end, after the peer has stopped using it. Only in RDMA mode.
    pub fn flush(&mut self, pool: u32) -> Result<(), PoolError> {
        self.owner.flush(pool)?;
        self.request_flush(&[pool]);
        self.settle();
        Ok(())
    }

    /// Stops using a pool of the peer, so that the peer frees it. Only in RDMA mode.
    pub fn give_back(&mut self, pool: u32) -> Result<(), PoolError> {
        self.sender.give_back(pool)?;
        self.settle();
        Ok(())
    }

    /// Returns the pools that this end has advertised and does not flush, which [`Self::flush`] takes.
    pub fn own_pools(&self) -> Vec<u32> {
        self.owner.advertised().collect()
    }

    /// Returns the pools of the peer that frames are sent to, which [`Self::give_back`] takes.
    pub fn peer_pools(&self) -> Vec<u32> {
        self.sender.usable().collect()
    }

    /// Detaches the host: flushes the pools of both ends, then tells the unit. At the unit, ends the session.
    pub fn detach(&mut self) {
        match (self.phase, &self.side) {
            (Phase::Open, Side::Host { .. }) => {}
            (Phase::Detaching, _) => return,
            _ => return self.end(Reason::Shutdown),
        }
        self.phase = Phase::Detaching;
        if self.mode == Mode::Rdma {
            let own = self.own_pools();
            own.iter().for_each(|pool| self.owner.flush(*pool).expect("it is advertised"));
            if !own.is_empty() {
                self.request_flush(&own);
            }
            let peers = self.peer_pools();
            peers.iter().for_each(|pool| self.sender.give_back(*pool).expect("it is usable"));
        }
        self.settle();
    }

    pub(super) fn register(&mut self, shape: Shape) {
        if self.owner.len() >= self.config.max_pools {
            return;
        }
        let Shape { count, element_size } = shape;
        if let Ok(pool) = self.owner.create(shape) {
            self.act(Action::RegisterPool { pool, count, element_size });
        }
    }

    pub(super) fn on_pools(&mut self, pools: &[PoolEntry]) -> Result<(), Violation> {
        for entry in pools {
            self.sender.add(*entry).map_err(violated(Function::BufferRecvPool))?;
            if self.phase == Phase::Detaching && self.mode == Mode::Rdma {
                self.sender.give_back(entry.index).map_err(violated(Function::BufferRecvPool))?;
            }
        }
        Ok(())
    }

    /// Grants another pool of the smallest shape in the settings that holds frames of this length. Otherwise, does
    /// nothing: the peer expects no answer.
    pub(super) fn on_pool_get(&mut self, element_size: u32) {
        let shapes = self.config.shapes(self.mode);
        let fitting = shapes.into_iter().find(|shape| shape.element_size >= element_size);
        let most = self.config.max_pools;
        let Some(shape) = fitting.filter(|_| self.phase == Phase::Open && self.owner.len() < most) else {
            return;
        };
        if self.grants.take(most, self.now) {
            self.register(shape);
        }
    }

    pub(super) fn on_flush_request(&mut self, context: u64, pools: &[u32]) -> Result<(), PoolError> {
        let (ours, theirs): (Vec<u32>, Vec<u32>) = pools.iter().partition(|pool| **pool & YOURS != 0);
        ours.iter().try_for_each(|pool| self.owner.given_back(pool & !YOURS))?;
        theirs.iter().try_for_each(|pool| self.sender.close(*pool))?;
        self.flushes.push(PeerFlush { context, pools: theirs });
        Ok(())
    }

    pub(super) fn on_flush_reply(&mut self, context: u64) -> Result<(), Violation> {
        let is_flush = |awaited: &Awaited| matches!(awaited, Awaited::FlushOwn(_) | Awaited::GiveBack(_));
        match self.answered(Function::BufferPoolFlushReply, context, is_flush)? {
            Awaited::FlushOwn(pools) => pools.iter().for_each(|pool| self.owner.drain(*pool)),
            Awaited::GiveBack(pools) => pools.iter().for_each(|pool| self.sender.remove_given_back(*pool)),
            _ => {}
        }
        Ok(())
    }

    /// Answers a Detach when the frames of this end are acknowledged. At the unit.
    pub(super) fn on_detach(&mut self, context: u64) {
        match &mut self.side {
            Side::Unit { detach, .. } if matches!(self.phase, Phase::Attached | Phase::Open) => {
                *detach = Some(context);
                self.phase = Phase::Detaching;
                self.pending.retain(|pending| pending.awaited != Awaited::Join);
            }
            _ => self.fail(context, Operation::Detach as u16, Status::WrongState),
        }
    }

    /// Does what has become due. Runs at the end of every event.
    pub(super) fn settle(&mut self) {
        if self.phase == Phase::Ended {
            self.free_drained();
        } else {
            self.return_elements();
            self.advance_flushes();
            self.free_drained();
            self.advance_detach();
            if !self.up && self.phase == Phase::Open && !self.sender.is_empty() {
                self.up = true;
                self.act(Action::Up);
            }
            self.resume();
        }
    }

    /// Sends the Update that is due, unless the control channel is busy: a later one returns more elements at once.
    fn return_elements(&mut self) {
        if self.control >= MAX_CONTROL / 2 {
            return;
        }
        let entries = self.owner.take_update(MAX_ENTRIES);
        if entries.is_empty() {
            return;
        }
        if self.mode == Mode::Send {
            for entry in &entries {
                let pool = entry.pool;
                entry.elements().for_each(|element| self.act(Action::PostReceive { pool, element }));
            }
        }
        self.post(Channel::Control, 0, &Message::Update(entries));
    }

    fn advance_flushes(&mut self) {
        let given_back = self.sender.take_given_back();
        if !given_back.is_empty() {
            let context = self.new_context();
            let references = given_back.iter().map(|pool| pool | YOURS).collect();
            self.expect(context, Awaited::GiveBack(given_back));
            self.post(Channel::Control, context, &Message::FlushRequest(references));
        }
        // The owner deregisters the memory when it has the reply: no Write may be on its way (order rule 2).
        let quiet = |flush: &mut PeerFlush| flush.pools.iter().all(|pool| self.sender.is_quiet(*pool));
        let replies: Vec<PeerFlush> = self.flushes.extract_if(.., quiet).collect();
        for PeerFlush { context, pools } in replies {
            pools.iter().for_each(|pool| self.sender.remove(*pool));
            self.post(Channel::Control, context, &Message::FlushReply);
        }
    }

    fn advance_detach(&mut self) {
        if self.phase != Phase::Detaching || !self.data.is_empty() {
            return;
        }
        match &mut self.side {
            Side::Host { .. } => {
                let asked = Awaited::Reply(Operation::Detach as u16);
                let freed = self.mode == Mode::Send || self.owner.is_empty() && self.sender.is_empty();
                if freed && self.pending.iter().all(|pending| pending.awaited != asked) {
                    self.ask(&Request::Detach, Channel::Control, Operation::Detach);
                }
            }
            Side::Unit { detach, .. } => {
                if let Some(context) = detach.take() {
                    self.phase = Phase::Detached;
                    self.expect(0, Awaited::Disconnect);
                    self.post(Channel::Control, context, &Message::Reply(Reply::Detach));
                }
            }
        }
    }

    fn request_flush(&mut self, pools: &[u32]) {
        let context = self.new_context();
        self.expect(context, Awaited::FlushOwn(pools.to_vec()));
        self.post(Channel::Control, context, &Message::FlushRequest(pools.to_vec()));
    }
}
