//! What a sender knows about the messages that it has not finished: for each destination a *flow*, with its session, the
//! messages that wait, and those that were sent and are not acknowledged.
//!
//! A flow first opens a session: the receiver answers with a cookie, which the sender returns. Then up to 64 messages are
//! outstanding, each with its own number and timer. A message without an answer is sent again, each time after twice the
//! time, until its retries are used up.
//!
//! # Why nothing is sent twice to different sessions
//! A receiver that has forgotten the session, because it was restarted or has replaced this sender by another one, cannot
//! know which messages it has placed. Messages that were sent at least once in the session therefore fail; they may or may
//! not have been delivered. The others go on in a new session.

use super::senders::{SESSION_INPUT, WINDOW};
use crate::broken;
use crate::datagram::request::{AddressHandle, DatagramRequest};
use crate::error::QpError;
use crate::gid::Gid;
use crate::retry::{FOREVER, Retries, rnr_delay};
use crate::siphash::{Key, siphash};
use ironwarp_wire::private::DatagramAnswer;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Maximum number of flows without messages. One that is forgotten needs a new session for its next message.
const MAX_IDLE: usize = 1024;

/// Upper bound on the time between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// After so long without an answer, a flow without messages opens a new session before it sends the next one: the receiver
/// may have forgotten the old one meanwhile, and the message would fail.
const SESSION_IDLE: Duration = Duration::from_secs(5);

/// The time before the first retry if [`Retries::timeout`] is zero, which means that messages are retried forever.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(16);

/// A destination: the local and the remote address, the number of the queue pair, and its Q_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::datagram) struct Target {
    pub(in crate::datagram) from: Gid,
    pub(in crate::datagram) to: Gid,
    pub(in crate::datagram) qpn: u32,
    pub(in crate::datagram) qkey: u32,
}

/// A datagram to be sent.
#[derive(Debug)]
pub(in crate::datagram) enum Transmission {
    /// Asks to open a session.
    Open { target: Target, address: AddressHandle, session: u64, cookie: u64 },
    /// A message.
    Message { target: Target, session: u64, sequence: u32, request: DatagramRequest },
}

/// A request that has ended: with success, or with this error.
#[derive(Debug)]
pub(in crate::datagram) struct Finished {
    pub(in crate::datagram) request: DatagramRequest,
    pub(in crate::datagram) error: Option<QpError>,
}

/// The attempts to get an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Attempts {
    /// Number of attempts since the last answer.
    count: u32,
    /// Number of answers that no receive is posted.
    not_ready: u32,
    /// When to try again. `None` while the datagram is queued.
    due: Option<Duration>,
}

/// A message that has a sequence number.
#[derive(Debug)]
struct Outstanding {
    sequence: u32,
    request: DatagramRequest,
    attempts: Attempts,
    /// Whether the receiver may have the message.
    was_sent: bool,
}

/// The state of the session of a flow.
#[derive(Debug)]
enum Phase {
    Opening { cookie: u64, attempts: Attempts },
    Open,
}

/// The messages to one destination.
#[derive(Debug)]
struct Flow {
    address: AddressHandle,
    session: u64,
    phase: Phase,
    /// Messages without a sequence number.
    waiting: VecDeque<DatagramRequest>,
    /// Messages with consecutive sequence numbers, except that some have ended.
    outstanding: VecDeque<Outstanding>,
    next_sequence: u32,
    /// When the flow was last used, on the clock of [`Flows::uses`].
    used: u64,
    /// When the receiver has answered last.
    answered: Duration,
}

/// What is queued to be sent.
#[derive(Clone, Copy, Debug)]
enum Queued {
    Open(Target),
    Message(Target, u32),
}

/// The flows of a queue pair.
#[derive(Debug)]
pub(in crate::datagram) struct Flows {
    key: Key,
    retries: Retries,
    /// Number of sessions so far.
    sessions: u64,
    flows: BTreeMap<Target, Flow>,
    queue: VecDeque<Queued>,
    finished: Vec<Finished>,
    /// No attempt is due before.
    next_due: Option<Duration>,
    /// The earliest time for which the driver has a timer.
    timer: Option<Duration>,
    /// How often flows were used.
    uses: u64,
}

impl Flows {
    /// Creates a set without flows. The key must be secret.
    pub(in crate::datagram) fn new(key: Key, retries: Retries) -> Self {
        let (flows, queue, finished) = (BTreeMap::new(), VecDeque::new(), Vec::new());
        Self { key, retries, sessions: 0, flows, queue, finished, next_due: None, timer: None, uses: 0 }
    }

    /// Adds a message to the flow of its destination, with this Q_Key.
    pub(in crate::datagram) fn add(&mut self, now: Duration, request: DatagramRequest, qkey: u32) {
        let address = request.destination.address;
        let (from, to, qpn) = (address.source, address.destination, request.destination.qpn);
        let target = Target { from, to, qpn, qkey };
        let is_open = self.flows.get(&target).is_some_and(|flow| !flow.is_outdated(now));
        if !is_open {
            self.forget_idle_flow();
            let session = self.new_session();
            self.flows.insert(target, Flow::new(address, session));
            self.queue.push_back(Queued::Open(target));
        }
        self.uses += 1;
        let flow = self.flows.get_mut(&target).expect("inserted above");
        flow.used = self.uses;
        flow.waiting.push_back(request);
        flow.number_waiting(target, &mut self.queue);
    }

    /// Returns the next datagram to be sent, and starts its timer. A message counts as sent from now on.
    pub(in crate::datagram) fn next(&mut self, now: Duration) -> Option<Transmission> {
        while let Some(queued) = self.queue.pop_front() {
            let (transmission, attempts) = match queued {
                Queued::Open(target) => {
                    let Some(flow) = self.flows.get_mut(&target) else { continue };
                    let Phase::Opening { cookie, attempts } = &mut flow.phase else { continue };
                    let (address, session, cookie) = (flow.address, flow.session, *cookie);
                    (Transmission::Open { target, address, session, cookie }, attempts)
                }
                Queued::Message(target, sequence) => {
                    let Some(flow) = self.flows.get_mut(&target) else { continue };
                    let session = flow.session;
                    let Some(message) = flow.outstanding_mut(sequence) else { continue };
                    message.was_sent = true;
                    let request = message.request.clone();
                    (Transmission::Message { target, session, sequence, request }, &mut message.attempts)
                }
            };
            if attempts.due.is_some() {
                continue; // it was queued twice
            }
            let due = now + backoff(self.retries, attempts.count);
            attempts.count += 1;
            attempts.due = Some(due);
            self.note_due(due);
            return Some(transmission);
        }
        None
    }

    /// Takes back the last result of [`next`](Self::next), which was not sent.
    pub(in crate::datagram) fn put_back(&mut self, transmission: &Transmission) {
        let queued = match transmission {
            Transmission::Open { target, .. } => {
                let Some(flow) = self.flows.get_mut(target) else { return };
                let Phase::Opening { attempts, .. } = &mut flow.phase else { return };
                attempts.take_back();
                Queued::Open(*target)
            }
            Transmission::Message { target, sequence, session, .. } => {
                let flow = self.flows.get_mut(target).filter(|flow| flow.session == *session);
                let Some(message) = flow.and_then(|flow| flow.outstanding_mut(*sequence)) else { return };
                message.attempts.take_back();
                message.was_sent = message.attempts.count > 0 || message.attempts.not_ready > 0;
                Queued::Message(*target, *sequence)
            }
        };
        self.queue.push_front(queued);
    }

    /// Removes a message that cannot be sent. Returns its request, unless the message has ended.
    pub(in crate::datagram) fn remove(
        &mut self,
        target: Target,
        session: u64,
        sequence: u32,
    ) -> Option<DatagramRequest> {
        let flow = self.flows.get_mut(&target).filter(|flow| flow.session == session)?;
        flow.take_outstanding(sequence).map(|message| message.request)
    }

    /// Handles a challenge: the sender has to return this cookie.
    pub(in crate::datagram) fn on_challenge(&mut self, target: Target, session: u64, new_cookie: u64) {
        let retries = self.retries;
        let Some(flow) = flow_of_session(&mut self.flows, target, session) else { return };
        let Phase::Opening { cookie, attempts } = &mut flow.phase else { return };
        *cookie = new_cookie;
        // A receiver that never accepts its own cookies cannot keep this end sending: then the timer decides.
        if attempts.due.is_some() && !attempts.are_used_up(retries) {
            attempts.due = None;
            self.queue.push_back(Queued::Open(target));
        }
    }

    /// Handles any other answer, to the datagram with this sequence number.
    pub(in crate::datagram) fn on_answer(
        &mut self,
        now: Duration,
        target: Target,
        session: u64,
        sequence: u32,
        answer: DatagramAnswer,
    ) {
        let retries = self.retries;
        let Some(flow) = flow_of_session(&mut self.flows, target, session) else { return };
        flow.answered = now;
        match answer {
            DatagramAnswer::Opened => {
                flow.phase = Phase::Open;
                flow.number_waiting(target, &mut self.queue);
            }
            DatagramAnswer::NotReady => {
                let Some(message) = flow.outstanding_mut(sequence) else { return };
                let attempts = &mut message.attempts;
                if attempts.due.is_none() || attempts.count == 0 {
                    return; // an answer to an earlier attempt, or a second one to the last
                }
                if retries.rnr_retry < FOREVER && attempts.not_ready >= retries.rnr_retry.into() {
                    return self.finish(target, sequence, Some(QpError::NotReady));
                }
                let due = now + doubled(rnr_delay(retries.rnr_timer), attempts.not_ready);
                *attempts = Attempts { count: 0, not_ready: attempts.not_ready + 1, due: Some(due) };
                self.note_due(due);
            }
            DatagramAnswer::Placed => self.finish(target, sequence, None),
            DatagramAnswer::Rejected => self.finish(target, sequence, Some(QpError::ReceiveFailed)),
            // Only if this message of the session waits for an answer: the answer may be a duplicate.
            DatagramAnswer::Unknown if flow.outstanding_mut(sequence).is_some() => self.restart(target),
            DatagramAnswer::Unknown => {}
        }
    }

    /// Queues what is due to be sent again, and ends what has used up its retries.
    pub(in crate::datagram) fn tick(&mut self, now: Duration) {
        if self.timer.is_some_and(|timer| timer <= now) {
            self.timer = None;
        }
        if self.next_due.is_none_or(|due| due > now) {
            return;
        }
        self.next_due = None;
        let (retries, mut next, mut silent) = (self.retries, None, Vec::new());
        let is_due = |attempts: &Attempts, next: &mut Option<Duration>| match attempts.due {
            Some(due) if due <= now => true,
            Some(due) => {
                *next = Some(next.map_or(due, |next| due.min(next)));
                false
            }
            None => false,
        };
        for (&target, flow) in &mut self.flows {
            if let Phase::Opening { attempts, .. } = &mut flow.phase
                && is_due(attempts, &mut next)
            {
                if attempts.are_used_up(retries) {
                    silent.push((target, None));
                } else {
                    attempts.due = None;
                    self.queue.push_back(Queued::Open(target));
                }
            }
            for message in &mut flow.outstanding {
                if is_due(&message.attempts, &mut next) {
                    if message.attempts.are_used_up(retries) {
                        silent.push((target, Some(message.sequence)));
                    } else {
                        message.attempts.due = None;
                        self.queue.push_back(Queued::Message(target, message.sequence));
                    }
                }
            }
        }
        self.next_due = next;
        for (target, sequence) in silent {
            match sequence {
                Some(sequence) => self.finish(target, sequence, Some(QpError::Unreachable)),
                None => self.give_up(target),
            }
        }
    }

    /// Returns whether something is queued to be sent.
    pub(in crate::datagram) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Returns when the driver has to call again, if it has no timer for that time or an earlier one.
    pub(in crate::datagram) fn start_timer(&mut self) -> Option<Duration> {
        let due = self.next_due?;
        if self.timer.is_some_and(|timer| timer <= due) {
            return None;
        }
        self.timer = Some(due);
        Some(due)
    }

    /// Returns the requests that have ended since the last call.
    pub(in crate::datagram) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Removes and returns all requests, and forgets all sessions.
    pub(in crate::datagram) fn take_all(&mut self) -> Vec<DatagramRequest> {
        self.queue.clear();
        self.next_due = None;
        let finished = self.take_finished().into_iter().map(|finished| finished.request);
        let flows = std::mem::take(&mut self.flows).into_values();
        let unfinished = flows
            .flat_map(|flow| flow.outstanding.into_iter().map(|message| message.request).chain(flow.waiting));
        finished.chain(unfinished).collect()
    }

    /// Ends a message, and lets the next ones of its flow go.
    fn finish(&mut self, target: Target, sequence: u32, error: Option<QpError>) {
        let Some(flow) = self.flows.get_mut(&target) else { return };
        let Some(message) = flow.take_outstanding(sequence) else { return };
        self.finished.push(Finished { request: message.request, error });
        flow.number_waiting(target, &mut self.queue);
    }

    /// Ends all messages that wait for a session that cannot be opened.
    fn give_up(&mut self, target: Target) {
        let Some(flow) = self.flows.remove(&target) else { return };
        let failed = |request| Finished { request, error: Some(QpError::Unreachable) };
        self.finished.extend(flow.waiting.into_iter().map(failed));
    }

    /// Begins a new session, because the receiver does not know the old one. Messages that it may have placed fail.
    fn restart(&mut self, target: Target) {
        let session = self.new_session();
        let Some(flow) = self.flows.get_mut(&target) else { return };
        let outstanding = std::mem::take(&mut flow.outstanding).into_iter();
        let (sent, unsent): (Vec<_>, Vec<_>) =
            outstanding.partition(|message| message.was_sent && !broken::is("resend"));
        let failed = |request| Finished { request, error: Some(QpError::SessionLost) };
        self.finished.extend(sent.into_iter().map(|message| failed(message.request)));
        let later = std::mem::take(&mut flow.waiting);
        flow.waiting = unsent.into_iter().map(|message| message.request).chain(later).collect();
        if flow.waiting.is_empty() {
            self.flows.remove(&target);
            return;
        }
        let waiting = std::mem::take(&mut flow.waiting);
        *flow = Flow { waiting, used: flow.used, ..Flow::new(flow.address, session) };
        self.queue.push_back(Queued::Open(target));
    }

    /// Returns a number for a new session, which others cannot guess.
    fn new_session(&mut self) -> u64 {
        self.sessions += 1;
        siphash(self.key, &[SESSION_INPUT, self.sessions])
    }

    /// Forgets the flow without messages that was not used for the longest time, if there are many.
    fn forget_idle_flow(&mut self) {
        if self.flows.len() < MAX_IDLE {
            return;
        }
        let idle = self.flows.iter().filter(|(_, flow)| flow.is_idle());
        if let Some(target) = idle.min_by_key(|(_, flow)| flow.used).map(|(target, _)| *target) {
            self.flows.remove(&target);
        }
    }

    /// Returns the number of flows.
    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Notes that an attempt is due at this time.
    fn note_due(&mut self, due: Duration) {
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
    }
}

impl Flow {
    /// Creates a flow without messages, whose session is to be opened.
    fn new(address: AddressHandle, session: u64) -> Self {
        let phase = Phase::Opening { cookie: 0, attempts: Attempts::default() };
        let (waiting, outstanding) = (VecDeque::new(), VecDeque::new());
        Self {
            address,
            session,
            phase,
            waiting,
            outstanding,
            next_sequence: 0,
            used: 0,
            answered: Duration::ZERO,
        }
    }

    /// Gives messages that wait a sequence number, and queues them, as far as the window of the receiver allows.
    fn number_waiting(&mut self, target: Target, queue: &mut VecDeque<Queued>) {
        if !matches!(self.phase, Phase::Open) {
            return;
        }
        loop {
            let oldest = self.outstanding.front().map_or(self.next_sequence, |message| message.sequence);
            if self.next_sequence.wrapping_sub(oldest) >= WINDOW {
                return;
            }
            let Some(request) = self.waiting.pop_front() else { return };
            let sequence = self.next_sequence;
            self.next_sequence = sequence.wrapping_add(1);
            let (attempts, was_sent) = (Attempts::default(), false);
            self.outstanding.push_back(Outstanding { sequence, request, attempts, was_sent });
            queue.push_back(Queued::Message(target, sequence));
        }
    }

    /// Returns the outstanding message with this sequence number.
    fn outstanding_mut(&mut self, sequence: u32) -> Option<&mut Outstanding> {
        self.outstanding.iter_mut().find(|message| message.sequence == sequence)
    }

    /// Removes and returns the outstanding message with this sequence number.
    fn take_outstanding(&mut self, sequence: u32) -> Option<Outstanding> {
        let at = self.outstanding.iter().position(|message| message.sequence == sequence)?;
        self.outstanding.remove(at)
    }

    /// Returns whether the flow has had neither messages nor answers for so long that it needs a new session.
    fn is_outdated(&self, now: Duration) -> bool {
        self.is_idle() && now.saturating_sub(self.answered) > SESSION_IDLE
    }

    /// Returns whether the flow has no messages.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.outstanding.is_empty()
    }
}

impl Attempts {
    /// Returns whether no retry is left.
    fn are_used_up(&self, retries: Retries) -> bool {
        retries.timeout != 0 && self.count > retries.retry_count.into()
    }

    /// Takes back the last attempt, which was not made.
    fn take_back(&mut self) {
        self.count = self.count.saturating_sub(1); // zero if an earlier attempt was answered meanwhile
        self.due = None;
    }
}

/// Returns the flow to a destination, if this is its session. Others cannot guess the number, so the answer is genuine.
fn flow_of_session(flows: &mut BTreeMap<Target, Flow>, target: Target, session: u64) -> Option<&mut Flow> {
    flows.get_mut(&target).filter(|flow| flow.session == session)
}

/// Returns the time to wait for an answer after this many attempts.
fn backoff(retries: Retries, attempts: u32) -> Duration {
    doubled(retries.attempt_timeout().unwrap_or(DEFAULT_TIMEOUT), attempts)
}

/// Returns `time`, doubled this many times, within [`MAX_BACKOFF`].
fn doubled(time: Duration, times: u32) -> Duration {
    time.saturating_mul(1 << times.min(16)).min(MAX_BACKOFF)
}
