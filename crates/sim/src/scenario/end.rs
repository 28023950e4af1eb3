//! The end of a run, line by line: who is well goes on, who is not has a reason.

use super::request::Effect;
use super::scene::Scene;
use super::verdict::Verdict;
use crate::world::End;
use ironwarp_rnic::error::Fault;
use ironwarp_rnic::qp::State;

impl Scene {
    fn verdict(&self, who: usize, number: usize) -> Verdict<'_> {
        let (program, peer) = (&self.programs[who], &self.programs[1 - who]);
        let cut = self.world.faults().report().counts.cuts > 0;
        let end = self.world.end(&program.lines[number].qp);
        let gone = program.lines[number].is_well() && end.is_none_or(End::is_closed);
        Verdict { program, peer, number, cut, gone }
    }

    pub(super) fn judge(&mut self) {
        for line in 0..self.programs[0].lines.len() {
            let both = [self.verdict(0, line), self.verdict(1, line)];
            let well = |who: usize| self.programs[who].lines[line].is_well() && !both[who].gone;
            assert_eq!(well(0), well(1), "line {line}: both know, or none: {:?}", self.mischief);
            for who in [0, 1] {
                if well(who) {
                    assert_eq!(self.programs[who].lines[line].qp.state(), State::ReadyToSend);
                    both[who].expect_well();
                } else {
                    self.expect_closed(who, line);
                    both[who].expect_ended();
                }
            }
            self.expect_last_words(line, both);
        }
        for who in [0, 1] {
            let (program, peer) = (&self.programs[who], &self.programs[1 - who]);
            let lines = program.lines.iter().flat_map(|line| &line.requests[..line.posted]);
            self.counts[who] += lines.filter(|it| matches!(it.effect, Effect::Count)).count();
            program.expect_counted(peer, self.counts[who]);
            if !program.rules.overflows(who) {
                program.expect_supplies(self.lost[who]);
            }
        }
    }

    /// The connection is over for both, in time.
    fn expect_closed(&self, who: usize, line: usize) {
        let line = &self.programs[who].lines[line];
        if !line.fate.reset
            && let Some(end) = self.world.end(&line.qp)
        {
            assert!(end.is_closed(), "it should be closed: {:?} {:?}", line.qp.fault(), self.mischief);
            assert!(!end.is_aborted(), "the peer closes in time: {:?} {:?}", line.qp.fault(), self.mischief);
        }
    }

    /// What was posted before a program disconnected was still done, unless something else came in between.
    fn expect_last_words(&self, line: usize, both: [Verdict<'_>; 2]) {
        let fault = |who: usize| self.programs[who].lines[line].qp.fault().map(|fault| &**fault);
        let orderly = |who: usize| {
            matches!(fault(who), None | Some(Fault::Disconnected | Fault::Closed | Fault::Unreachable))
        };
        for who in [0, 1] {
            if fault(who) == Some(&Fault::Disconnected) && orderly(1 - who) {
                both[who].expect_done();
            }
        }
    }

    /// Of the lines that are well, one end disconnects, or both do.
    pub(super) fn close(&mut self) {
        let lines = 0..self.programs[0].lines.len();
        let well: Vec<usize> =
            lines.filter(|line| self.programs.iter().all(|it| it.lines[*line].is_well())).collect();
        let well: Vec<usize> = well.into_iter().filter(|line| !self.verdict(0, *line).gone).collect();
        let who = self.rng.below(3);
        let closes = |number: usize| who == 2 || who == number as u64;
        for line in &well {
            for number in [0, 1].into_iter().filter(|number| closes(*number)) {
                self.disconnect(number, *line);
            }
        }
        self.world.run();
        self.check();
        for (line, number) in well.iter().flat_map(|line| [(*line, 0), (*line, 1)]) {
            let qp = &self.programs[number].lines[line].qp;
            let end = self.world.end(qp).expect("it is connected");
            let by_hand = self.programs[number].rules.by_hand;
            let expected = match closes(number) {
                true => Some("this end closed the connection"),
                false => (!by_hand).then_some("the peer closed the connection"),
            };
            assert_eq!(qp.fault().map(ToString::to_string).as_deref(), expected);
            assert!(end.is_ended() == expected.is_some() && end.is_closed() && !end.is_aborted());
        }
    }
}
