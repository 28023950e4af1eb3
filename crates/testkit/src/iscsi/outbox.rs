//! The sending half of a connection: sequence numbers, digests, and PDUs that a script holds back.

use super::script::{Outgoing, Script, Sending};
use ironwarp_wire::iscsi::{Digests, SequenceNumbers, TargetPdu};
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// StatSN of the first PDU of a connection.
const FIRST_STAT_SN: u32 = 0x5000;

/// Sends PDUs on a connection, for its thread and for the test.
pub(super) struct Outbox {
    script: Arc<dyn Script>,
    /// Written to only while `state` is locked.
    stream: TcpStream,
    state: Mutex<State>,
    /// Signalled when a PDU is held.
    holds: Condvar,
}

#[derive(Default)]
struct State {
    digests: Digests,
    /// The numbers of the next PDU.
    numbers: SequenceNumbers,
    held: Vec<Outgoing>,
}

impl Outbox {
    pub(super) fn new(stream: TcpStream, script: Arc<dyn Script>) -> Self {
        let numbers = SequenceNumbers { stat_sn: FIRST_STAT_SN, ..Default::default() };
        let state = Mutex::new(State { numbers, ..Default::default() });
        Self { script, stream, state, holds: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sends a PDU, if the script does not decide otherwise.
    pub(super) fn send(&self, pdu: TargetPdu, data: Vec<u8>) -> io::Result<()> {
        let mut sending = Sending { now: vec![Outgoing::new(pdu, data)], held: Vec::new() };
        self.script.send(&mut sending); // without the lock, because it may wait for the test
        let mut state = self.state();
        state.held.append(&mut sending.held);
        self.holds.notify_all();
        sending.now.iter().try_for_each(|pdu| self.write(&mut state, pdu))
    }

    /// Sends a PDU without asking the script.
    pub(super) fn transmit(&self, pdu: &Outgoing) -> io::Result<()> {
        self.write(&mut self.state(), pdu)
    }

    /// Waits until at least `count` PDUs are held.
    pub(super) fn wait_until_held(&self, count: usize) {
        drop(self.holds.wait_while(self.state(), |state| state.held.len() < count).unwrap());
    }

    /// Sends all PDUs that are held.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut state = self.state();
        std::mem::take(&mut state.held).iter().try_for_each(|pdu| self.write(&mut state, pdu))
    }

    /// Announces the command numbers that the target accepts.
    pub(super) fn set_window(&self, exp_cmd_sn: u32, window: u32) {
        let numbers = &mut self.state().numbers;
        (numbers.exp_cmd_sn, numbers.max_cmd_sn) =
            (exp_cmd_sn, exp_cmd_sn.wrapping_add(window).wrapping_sub(1));
    }

    /// Returns StatSN of the next status.
    pub(super) fn next_stat_sn(&self) -> u32 {
        self.state().numbers.stat_sn
    }

    /// Sends these digests from now on, except in login responses, which have none.
    pub(super) fn set_digests(&self, digests: Digests) {
        self.state().digests = digests;
    }

    /// Closes the connection in the given directions, even if a thread waits for space to write.
    pub(super) fn close(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how); // fails if the initiator was faster
    }

    fn write(&self, state: &mut State, pdu: &Outgoing) -> io::Result<()> {
        let is_login = matches!(pdu.pdu, TargetPdu::LoginResponse(_));
        let digests = if is_login { Digests::default() } else { state.digests };
        (&self.stream).write_all(&pdu.bytes(digests, state.numbers))?;
        if !pdu.own_numbers && pdu.pdu.numbers().1 {
            state.numbers.stat_sn = state.numbers.stat_sn.wrapping_add(1);
        }
        Ok(())
    }
}
