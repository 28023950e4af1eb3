//! Unit tests of fault injection, on a link that records the bytes it is given.

use super::*;
use crate::host::Span;
use crate::link::Link;
use crate::link::{LinkError, Piece};
use std::sync::atomic::{AtomicU64, Ordering};

const CUT: LinkError = LinkError::Lost(103);

/// A link that sends all bytes it is offered, and fills all room when it receives.
#[derive(Debug, Default)]
struct RecordingLink {
    /// Number of bytes offered to each call.
    offers: Mutex<Vec<usize>>,
    sent: Mutex<Vec<u8>>,
    /// Whether calls transfer no bytes now.
    blocked: Mutex<bool>,
    aborted: Mutex<bool>,
    finished: Mutex<bool>,
}

impl RecordingLink {
    fn offer(&self, len: usize) -> Result<(), LinkError> {
        if *lock(&self.aborted) {
            return Err(LinkError::Lost(1));
        }
        if *lock(&self.blocked) {
            return Err(LinkError::WouldBlock);
        }
        lock(&self.offers).push(len);
        Ok(())
    }
}

impl Link for RecordingLink {
    fn send(&self, pieces: &[Piece<'_>]) -> Result<usize, LinkError> {
        let len = pieces.iter().map(Piece::len).sum();
        self.offer(len)?;
        for piece in pieces {
            match piece {
                Piece::Own(bytes) => lock(&self.sent).extend_from_slice(bytes),
                // This memory holds the low bytes of its own addresses.
                Piece::Host(span) => {
                    lock(&self.sent).extend((0..).zip(0..span.len).map(|(n, _)| low(span.addr + n)));
                }
            }
        }
        Ok(len)
    }

    fn recv(&self, host: &[Span], own: &mut [u8]) -> Result<usize, LinkError> {
        let len = host.iter().map(|span| span.len).sum::<usize>() + own.len();
        self.offer(len)?;
        own.fill(7);
        Ok(len)
    }

    fn arrived(&self) -> usize {
        0
    }

    fn finish(&self) {
        *lock(&self.finished) = true;
    }

    fn abort(&self) {
        *lock(&self.aborted) = true;
    }

    fn segment_size(&self) -> usize {
        1448
    }
}

fn low(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

/// A clock that the test advances, and the times it was scheduled to schedule.
#[derive(Debug, Default)]
struct ManualClock {
    nanos: AtomicU64,
    scheduled: Mutex<Vec<Duration>>,
}

impl ManualClock {
    fn advance(&self, time: Duration) {
        self.nanos.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

impl Pacer for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn schedule(&self, after: Duration) {
        lock(&self.scheduled).push(after);
    }
}

struct Fixture {
    faults: Arc<Faults>,
    recorder: Arc<RecordingLink>,
    clock: Arc<ManualClock>,
    link: Arc<FaultyLink>,
}

fn fixture(plan: &str, seed: u64) -> Fixture {
    let (recorder, clock) = (Arc::<RecordingLink>::default(), Arc::<ManualClock>::default());
    let faults = Faults::new(plan.parse().unwrap(), seed);
    let link = faults.wrap_link(5, recorder.clone(), clock.clone());
    Fixture { faults, recorder, clock, link }
}

const BYTES: [u8; 100] = [1; 100];

fn send(link: &FaultyLink) -> Result<usize, LinkError> {
    link.send(&[Piece::Own(&BYTES)])
}

fn recv(link: &FaultyLink) -> Result<usize, LinkError> {
    link.recv(&[], &mut [0; 100])
}

#[test]
fn without_a_plan_everything_passes() {
    let Fixture { faults, recorder, clock, link } = fixture("none", 1);
    assert_eq!((send(&link), recv(&link), link.segment_size()), (Ok(100), Ok(100), 1448));
    assert_eq!(*lock(&recorder.offers), [100, 100]);
    link.finish();
    assert_eq!((*lock(&recorder.finished), *lock(&recorder.aborted)), (true, false));
    link.abort();
    assert!(*lock(&recorder.aborted));
    assert_eq!((send(&link), recv(&link)), (Err(LinkError::Lost(1)), Err(LinkError::Lost(1))));
    assert!(
        !faults.should_fail_registration()
            && !faults.receive_faults(1, clock.clone()).should_withhold_receive()
    );
    assert_eq!((faults.report().counts, lock(&clock.scheduled).len()), (Counts::default(), 0));
}

#[test]
fn a_split_passes_the_first_bytes_of_all_kinds_of_pieces() {
    let Fixture { faults, recorder, link, .. } = fixture("split=1", 2);
    let host = Span::new(0x10_0000, 50);
    let whole: Vec<u8> = [200; 30].into_iter().chain(0..50).chain([201; 20]).collect();
    let mut lengths = std::collections::BTreeSet::new();
    for _ in 0..300 {
        lock(&recorder.sent).clear();
        let pieces = [Piece::Own(&[200; 30]), Piece::Host(host), Piece::Own(&[201; 20])];
        let sent = link.send(&pieces).unwrap();
        assert!((1..100).contains(&sent));
        assert_eq!(*lock(&recorder.sent), whole[..sent]);
        lengths.insert(sent);
    }
    assert!(lengths.range(..=30).count() > 10 && lengths.range(31..=80).count() > 10);
    assert!(lengths.range(81..).count() > 5, "{lengths:?}");
    assert_eq!(faults.report().counts, Counts { splits: 300, ..Counts::default() });
    assert_eq!(faults.report().recent, [], "splits are not listed");
}

#[test]
fn a_split_receive_offers_less_and_in_the_same_order() {
    let Fixture { recorder, link, .. } = fixture("split=1", 3);
    let (one, other) = (Span::new(0x1000, 40), Span::new(0x9000, 30));
    let (mut in_host, mut in_own) = (0, 0);
    for _ in 0..300 {
        let mut own = [0; 30];
        let came = link.recv(&[one, other], &mut own).unwrap();
        assert!((1..100).contains(&came));
        assert_eq!(lock(&recorder.offers).pop(), Some(came));
        let behind = came.saturating_sub(70);
        assert_eq!(own.iter().filter(|&&byte| byte == 7).count(), behind);
        if behind == 0 { in_host += 1 } else { in_own += 1 }
    }
    assert!(in_host > 50 && in_own > 10, "{in_host} {in_own}");
}

#[test]
fn one_byte_is_not_split() {
    let Fixture { faults, link, .. } = fixture("split=1", 4);
    assert_eq!(link.send(&[Piece::Own(&[1])]), Ok(1));
    assert_eq!(faults.report().counts.splits, 0);
}

#[test]
fn a_delay_holds_one_direction_behind_the_first_byte() {
    let Fixture { faults, recorder, clock, link } = fixture("delay=5us@1", 5);
    assert_eq!((send(&link), send(&link)), (Ok(1), Err(LinkError::WouldBlock)));
    assert_eq!(*lock(&clock.scheduled), [Duration::from_micros(5)], "once, when it begins");
    assert_eq!(recv(&link), Ok(1), "the other direction goes on");
    assert_eq!(recv(&link), Err(LinkError::WouldBlock));
    clock.advance(Duration::from_nanos(4999));
    assert_eq!(send(&link), Err(LinkError::WouldBlock));
    clock.advance(Duration::from_nanos(1));
    assert_eq!((send(&link), recv(&link)), (Ok(1), Ok(1)));
    assert_eq!(*lock(&recorder.offers), [1, 1, 1, 1]);
    assert_eq!(faults.report().counts, Counts { delays: 4, ..Counts::default() });
    assert_eq!(faults.report().recent[0], (Some(5), Injected::Delay(Duration::from_micros(5))));
}

#[test]
fn a_stall_holds_both_directions() {
    let Fixture { faults, clock, link, .. } = fixture("stall=5us@1", 6);
    assert_eq!(recv(&link), Ok(1));
    assert_eq!((recv(&link), send(&link)), (Err(LinkError::WouldBlock), Err(LinkError::WouldBlock)));
    assert_eq!(*lock(&clock.scheduled), [Duration::from_micros(5)]);
    clock.advance(Duration::from_micros(5));
    assert_eq!(send(&link), Ok(1));
    assert_eq!(recv(&link), Err(LinkError::WouldBlock));
    assert_eq!(faults.report().counts, Counts { stalls: 2, ..Counts::default() });
}

#[test]
fn a_cut_aborts_and_is_final_for_both_directions() {
    let Fixture { faults, recorder, clock, link } = fixture("cut@1", 7);
    assert_eq!(send(&link), Err(CUT));
    assert!(*lock(&recorder.aborted));
    assert_eq!(*lock(&clock.scheduled), [Duration::ZERO], "the other direction is told");
    assert_eq!((recv(&link), send(&link)), (Err(CUT), Err(CUT)));
    assert_eq!(*lock(&recorder.sent), [1], "one byte was on its way");
    assert_eq!(faults.report().counts, Counts { cuts: 1, ..Counts::default() });
}

#[test]
fn the_worse_fault_comes_first() {
    let all = "split=1,delay=1us@1,stall=1us@1";
    assert_eq!(send(&fixture(&format!("{all},cut@1"), 8).link), Err(CUT));
    let Fixture { faults, link, .. } = fixture(all, 8);
    assert_eq!(send(&link), Ok(1));
    assert_eq!(faults.report().counts, Counts { stalls: 1, ..Counts::default() });
}

#[test]
fn times_come_from_the_whole_of_their_range() {
    let Fixture { clock, link, .. } = fixture("delay=10ns..20ns@1", 9);
    for _ in 0..500 {
        assert_eq!(send(&link), Ok(1));
        clock.advance(Duration::from_nanos(20));
    }
    let scheduled = lock(&clock.scheduled);
    let nanos = |time: &Duration| u64::try_from(time.as_nanos()).unwrap();
    let all: std::collections::BTreeSet<u64> = scheduled.iter().map(nanos).collect();
    assert!(all.into_iter().eq(10..=20));
}

/// Returns the results of `count` sends, with a microsecond between them.
fn trace(link: &FaultyLink, clock: &ManualClock, count: usize) -> Vec<Result<usize, LinkError>> {
    let step = |_| {
        clock.advance(Duration::from_micros(1));
        send(link)
    };
    (0..count).map(step).collect()
}

const MIXED: &str = "split=0.3,delay=2us..9us@0.1,stall=3us@0.1,cut@0.005";

#[test]
fn the_same_seed_and_calls_meet_the_same_faults() {
    let run = |seed| {
        let Fixture { faults, clock, link, .. } = fixture(MIXED, seed);
        (trace(&link, &clock, 500), faults.report())
    };
    assert_eq!(run(10), run(10));
    assert_ne!(run(10).0, run(11).0);
}

#[test]
fn links_and_directions_do_not_disturb_each_other() {
    let alone = fixture(MIXED.strip_suffix(",cut@0.005").unwrap(), 12);
    let together = fixture(&alone.faults.plan.to_string(), 12);
    let other = together.faults.wrap_link(6, together.recorder.clone(), together.clock.clone());
    let receives = together.faults.receive_faults(5, together.clock.clone());
    let mut differ = false;
    for _ in 0..500 {
        alone.clock.advance(Duration::from_micros(100));
        together.clock.advance(Duration::from_micros(100));
        let expected = send(&alone.link);
        assert_eq!(send(&together.link), expected);
        differ |= send(&other) != expected;
        together.clock.advance(Duration::from_micros(10)); // beyond a stall
        alone.clock.advance(Duration::from_micros(10));
        differ |= recv(&together.link) != expected;
        receives.should_withhold_receive();
        together.faults.should_fail_registration();
    }
    assert!(differ);
}

#[test]
fn asking_in_vain_changes_nothing() {
    let (eager, patient) = (fixture(MIXED, 13), fixture(MIXED, 13));
    let tries = |fixture: &Fixture| trace(&fixture.link, &fixture.clock, 100);
    assert_eq!(tries(&eager), tries(&patient));
    *lock(&eager.recorder.blocked) = true;
    let before = eager.faults.report();
    eager.clock.advance(Duration::from_secs(1));
    patient.clock.advance(Duration::from_secs(1));
    assert!((0..1000).all(|_| send(&eager.link) == Err(LinkError::WouldBlock)));
    assert_eq!(eager.faults.report(), before);
    *lock(&eager.recorder.blocked) = false;
    assert_eq!(tries(&eager), tries(&patient));
}

#[test]
fn one_more_word_leaves_the_other_faults_where_they_were() {
    let splits = |plan| {
        let Fixture { faults, clock, link, .. } = fixture(plan, 14);
        let moved = (0..200).map(|_| {
            clock.advance(Duration::from_secs(1));
            send(&link).unwrap()
        });
        (moved.collect::<Vec<_>>(), faults.report().counts.delays)
    };
    let (few, none) = splits("split=0.3");
    let (more, delays) = splits("split=0.3,delay=1us@0.05");
    assert!(none == 0 && delays > 0);
    let changed = few.iter().zip(&more).filter(|(few, more)| few != more).count();
    assert!(changed <= usize::try_from(delays).unwrap(), "{changed} of {delays}");
}

#[test]
fn questions_are_answered_by_the_plan_and_noted() {
    let Fixture { faults, clock, .. } = fixture("no-receive@0.5,no-register@0.25", 15);
    let receives = faults.receive_faults(3, clock.clone());
    let withheld = (0..1000).filter(|_| receives.should_withhold_receive()).count();
    let failed = (0..1000).filter(|_| faults.should_fail_registration()).count();
    assert!((450..550).contains(&withheld) && (200..300).contains(&failed), "{withheld} {failed}");
    assert_eq!(lock(&clock.scheduled).len(), withheld, "a withheld receive is looked for again");
    assert!(lock(&clock.scheduled).iter().all(|&after| after == WITHHOLD_TIME));
    let counts = faults.report().counts;
    let noted = (counts.withheld_receives, counts.failed_registrations);
    assert_eq!(noted, (u64::try_from(withheld).unwrap(), u64::try_from(failed).unwrap()));
}

#[test]
fn the_list_is_bounded_and_keeps_the_last() {
    let Fixture { faults, clock, .. } = fixture("no-receive@1,no-register@1", 16);
    let receives = faults.receive_faults(3, clock);
    (0..MAX_RECENT + 9).for_each(|_| assert!(faults.should_fail_registration()));
    assert!(receives.should_withhold_receive());
    let recent = faults.report().recent;
    assert_eq!((recent.len(), recent[MAX_RECENT - 1]), (MAX_RECENT, (Some(3), Injected::WithheldReceive)));
    assert_eq!(recent[MAX_RECENT - 2], (None, Injected::FailedRegistration));
}

#[test]
fn a_report_prints_what_would_do_it_again() {
    let Fixture { faults, link, clock, .. } = fixture("stall=5us@1,no-register@1", 17);
    send(&link).unwrap();
    clock.advance(Duration::from_secs(1));
    assert!(faults.should_fail_registration());
    assert_eq!(
        faults.report().to_string(),
        "faults stall=5us@1,no-register@1, seed 17\n\
         0 splits, 0 delays, 1 stalls, 0 cuts, 0 withheld receives, 1 failed registrations\n\
         stream 5: stall of 5us\n\
         device: failed registration"
    );
}
