//! The end of a run: checks that each connection works or has failed for a known reason, and disconnects those that
//! work.

use super::request::Effect;
use super::scene::Scene;
use super::verdict::Verdict;
use crate::world::End;
use ironwarp_rnic::error::QpError;
use ironwarp_rnic::qp::State;

impl Scene {
    /// Returns what is needed to check one end of a connection.
    fn verdict(&self, who: usize, number: usize) -> Verdict<'_> {
        let (program, peer) = (&self.programs[who], &self.programs[1 - who]);
        let cut = self.world.faults().report().counts.cuts > 0;
        let end = self.world.end(&program.connections[number].qp);
        let gone = program.connections[number].is_well() && end.is_none_or(End::is_closed);
        Verdict { program, peer, number, cut, gone }
    }

    /// Checks both ends of all connections, the counters and the shared receive queues.
    pub(super) fn check_connections(&mut self) {
        for connection in 0..self.programs[0].connections.len() {
            let both = [self.verdict(0, connection), self.verdict(1, connection)];
            let well = |who: usize| self.programs[who].connections[connection].is_well() && !both[who].gone;
            assert_eq!(
                well(0),
                well(1),
                "connection {connection}: only one end failed: {:?}",
                self.disturbance
            );
            for who in [0, 1] {
                if well(who) {
                    assert_eq!(self.programs[who].connections[connection].qp.state(), State::ReadyToSend);
                    both[who].expect_well();
                } else {
                    self.expect_closed(who, connection);
                    both[who].expect_ended();
                }
            }
            self.expect_posted_done(connection, both);
        }
        for who in [0, 1] {
            let (program, peer) = (&self.programs[who], &self.programs[1 - who]);
            let connections =
                program.connections.iter().flat_map(|connection| &connection.requests[..connection.posted]);
            self.counts[who] += connections.filter(|it| matches!(it.effect, Effect::Count)).count();
            program.expect_counted(peer, self.counts[who]);
            if !program.rules.overflows(who) {
                program.expect_supplies(self.lost[who]);
            }
        }
    }

    /// Checks that the link of a failed connection is closed, and that the peer closed it in time.
    fn expect_closed(&self, who: usize, connection: usize) {
        let connection = &self.programs[who].connections[connection];
        if !connection.fate.reset
            && let Some(end) = self.world.end(&connection.qp)
        {
            assert!(end.is_closed(), "not closed: {:?} {:?}", connection.error(), self.disturbance);
            assert!(
                !end.is_aborted(),
                "the peer did not close in time: {:?} {:?}",
                connection.error(),
                self.disturbance
            );
        }
    }

    /// Checks that requests posted before a disconnect were done, unless something else failed.
    fn expect_posted_done(&self, connection: usize, both: [Verdict<'_>; 2]) {
        let error = |who: usize| self.programs[who].connections[connection].error().map(|error| &**error);
        let orderly = |who: usize| {
            matches!(error(who), None | Some(QpError::Disconnected | QpError::Closed | QpError::Unreachable))
        };
        for who in [0, 1] {
            if error(who) == Some(&QpError::Disconnected) && orderly(1 - who) {
                both[who].expect_done();
            }
        }
    }

    /// Disconnects one or both ends of the connections that still work.
    pub(super) fn disconnect_all(&mut self) {
        let connections = 0..self.programs[0].connections.len();
        let well: Vec<usize> = connections
            .filter(|connection| self.programs.iter().all(|it| it.connections[*connection].is_well()))
            .collect();
        let well: Vec<usize> =
            well.into_iter().filter(|connection| !self.verdict(0, *connection).gone).collect();
        let who = self.rng.below(3);
        let closes = |number: usize| who == 2 || who == number as u64;
        for connection in &well {
            for number in [0, 1].into_iter().filter(|number| closes(*number)) {
                self.disconnect(number, *connection);
            }
        }
        self.world.run();
        self.poll_and_check();
        for (connection, number) in well.iter().flat_map(|connection| [(*connection, 0), (*connection, 1)]) {
            let qp = &self.programs[number].connections[connection].qp;
            let end = self.world.end(qp).expect("connected");
            let manual = self.programs[number].rules.manual;
            let expected = match closes(number) {
                true => Some("this end closed the connection"),
                false => (!manual).then_some("the peer closed the connection"),
            };
            assert_eq!(qp.error().map(ToString::to_string).as_deref(), expected);
            assert!(end.is_ended() == expected.is_some() && end.is_closed() && !end.is_aborted());
        }
    }
}
