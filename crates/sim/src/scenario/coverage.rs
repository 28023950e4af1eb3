//! Coverage of the runs: every verb with every status, every state transition, and further features.
//!
//! A random test proves nothing about cases that did not occur. So this file lists the cases that must occur, and
//! [`Coverage::missing`] returns those that did not.

use super::verb::Verb;
use ironwarp_rnic::qp::State;
use ironwarp_rnic::queue::Status;
use std::fmt;
use std::ops::AddAssign;

const VERBS: usize = Verb::ALL.len();
const STATES: usize = State::ALL.len();
const FEATURES: usize = Feature::ALL.len();

/// The statuses that are counted, with the headings of their columns. The columns `LOST` and `REFUSED` follow.
const STATUSES: [(Status, &str); 10] = [
    (Status::Success, "success"),
    (Status::Flushed, "flushed"),
    (Status::LocalLength, "length"),
    (Status::LocalQpOperation, "qp op"),
    (Status::LocalProtection, "local"),
    (Status::WindowBind, "bind"),
    (Status::LocalAccess, "access"),
    (Status::RemoteInvalidRequest, "r.invalid"),
    (Status::RemoteAccess, "r.access"),
    (Status::RemoteOperation, "r.op"),
];
/// Column of requests that failed because the connection was lost.
const LOST: usize = STATUSES.len();
/// Column of requests that could not be posted.
const REFUSED: usize = LOST + 1;
const COLUMNS: usize = REFUSED + 1;

/// Further features that all runs together must cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    Inline,
    ManyElements,
    Fence,
    Unsignalled,
    Solicited,
    Empty,
    Masked,
    StrictReceive,
    StrictWindows,
    OwnReceives,
    SharedReceives,
    NamedReceives,
    ForeignDomain,
    OneCompletionQueue,
    Manual,
    ForeignPeer,
    LimitReached,
    LastReceive,
    Drained,
    DrainCutShort,
    Established,
    ArmedNext,
    ArmedSolicited,
    /// A completion queue was resized with completions in it.
    Resized,
    ResizeRefused,
    /// An armed completion queue was moved to another handler, or to none.
    Moved,
    /// A completion queue was moved with completions in it.
    MovedFull,
    /// An event was raised without a handler, and went to the next one.
    KeptForNext,
    Moderated,
    /// An event arrived after its completions had been polled.
    HeldBack,
    Overrun,
    Purged,
    Reused,
    RightsRevoked,
    TakenAway,
    Disconnected,
    Aborted,
    PeerGone,
    PostedTooEarly,
    ReadV2,
    TriedAgain,
    Once,
    TouchedAgain,
    SharedMemory,
    BackToTcp,
    Offered,
    LeftSharedMemory,
    /// Indices of the memory table were retired.
    Retired,
    /// A request named a tag that the peer had deregistered, and was refused.
    OldTag,
    /// A program moved to another function.
    MovedFunction,
}

impl Feature {
    const ALL: [Self; 50] = [
        Self::Inline,
        Self::ManyElements,
        Self::Fence,
        Self::Unsignalled,
        Self::Solicited,
        Self::Empty,
        Self::Masked,
        Self::StrictReceive,
        Self::StrictWindows,
        Self::OwnReceives,
        Self::SharedReceives,
        Self::NamedReceives,
        Self::ForeignDomain,
        Self::OneCompletionQueue,
        Self::Manual,
        Self::ForeignPeer,
        Self::LimitReached,
        Self::LastReceive,
        Self::Drained,
        Self::DrainCutShort,
        Self::Established,
        Self::ArmedNext,
        Self::ArmedSolicited,
        Self::Resized,
        Self::ResizeRefused,
        Self::Moved,
        Self::MovedFull,
        Self::KeptForNext,
        Self::Moderated,
        Self::HeldBack,
        Self::Overrun,
        Self::Purged,
        Self::Reused,
        Self::RightsRevoked,
        Self::TakenAway,
        Self::Disconnected,
        Self::Aborted,
        Self::PeerGone,
        Self::PostedTooEarly,
        Self::ReadV2,
        Self::TriedAgain,
        Self::Once,
        Self::TouchedAgain,
        Self::SharedMemory,
        Self::BackToTcp,
        Self::Offered,
        Self::LeftSharedMemory,
        Self::Retired,
        Self::OldTag,
        Self::MovedFunction,
    ];
}

/// Number of occurrences of each case.
#[derive(Clone, Debug)]
pub struct Coverage {
    statuses: [[u64; COLUMNS]; VERBS],
    /// By old state, new state, and whether the transition was refused (0) or done (1).
    transitions: [[[u64; 2]; STATES]; STATES],
    features: [u64; FEATURES],
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            statuses: [[0; COLUMNS]; VERBS],
            transitions: [[[0; 2]; STATES]; STATES],
            features: [0; FEATURES],
        }
    }
}

impl Coverage {
    /// Counts a completion.
    pub(super) fn record_status(&mut self, verb: Verb, status: Status) {
        let column = STATUSES.iter().position(|(known, _)| *known == status);
        let lost = status == Status::RetryExceeded;
        let column = column.or(lost.then_some(LOST)).expect("a status that can occur");
        self.statuses[verb as usize][column] += 1;
    }

    /// Counts a request that could not be posted.
    pub(super) fn record_refusal(&mut self, verb: Verb) {
        self.statuses[verb as usize][REFUSED] += 1;
    }

    /// Counts a state transition, which was done or refused.
    pub(super) fn record_transition(&mut self, from: State, to: State, done: bool) {
        self.transitions[from as usize][to as usize][usize::from(done)] += 1;
    }

    /// Counts a feature.
    pub(super) fn record(&mut self, what: Feature) {
        self.record_if(what, true);
    }

    /// Counts a feature if the condition `is` holds.
    pub(super) fn record_if(&mut self, what: Feature, is: bool) {
        self.features[what as usize] += u64::from(is);
    }

    /// Returns descriptions of all cases that did not occur.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for verb in Verb::ALL {
            for column in (0..COLUMNS).filter(|column| self.statuses[verb as usize][*column] == 0) {
                if is_reachable(verb, column) {
                    missing.push(format!("{verb:?}: {}", heading(column)));
                }
            }
        }
        for from in State::ALL.into_iter().filter(|from| *from != State::SendError) {
            for to in State::ALL {
                let legal = usize::from(from.may_become(to));
                if self.transitions[from as usize][to as usize][legal] == 0 {
                    missing.push(format!("from {from} to {to}"));
                }
            }
        }
        let features = Feature::ALL.into_iter().filter(|it| self.features[*it as usize] == 0);
        missing.extend(features.map(|it| format!("{it:?}")));
        missing
    }
}

/// Returns the heading of a column.
fn heading(column: usize) -> &'static str {
    match column {
        REFUSED => "refused",
        LOST => "lost",
        _ => STATUSES[column].1,
    }
}

/// Returns whether a request with this verb can have the status of this column.
fn is_reachable(verb: Verb, column: usize) -> bool {
    let receives = matches!(verb, Verb::Receive | Verb::ReceiveShared | Verb::ReceiveNamed);
    let local = matches!(verb, Verb::Bind | Verb::Register | Verb::Invalidate);
    let atomic = matches!(verb, Verb::FetchAdd | Verb::CompareSwap);
    let Some((status, _)) = STATUSES.get(column) else {
        // Local operations cannot be lost, and receives are never refused by the peer.
        return if column == REFUSED { true } else { !receives && !local };
    };
    match status {
        Status::Success | Status::Flushed => true,
        Status::LocalLength => receives,
        // A Send with Invalidate cannot name a shared receive queue, because both use the same field.
        Status::LocalAccess => receives && verb != Verb::ReceiveNamed,
        Status::LocalQpOperation => verb == Verb::SendImmediate,
        Status::LocalProtection => !local,
        Status::WindowBind => local || verb == Verb::RegisterSend,
        // The receive that the request consumes may be missing or too short.
        Status::RemoteInvalidRequest => verb.uses_receive() && !receives,
        Status::RemoteAccess => {
            matches!(verb, Verb::SendInvalidate | Verb::Write | Verb::WriteImmediate | Verb::Read) || atomic
        }
        // The oldest request has this status if the peer failed for a reason of its own.
        Status::RemoteOperation => !receives && !local,
        _ => false,
    }
}

impl AddAssign<&Self> for Coverage {
    fn add_assign(&mut self, other: &Self) {
        let statuses = self.statuses.as_flattened_mut().iter_mut().zip(other.statuses.as_flattened());
        let transitions = self.transitions.as_flattened_mut().as_flattened_mut().iter_mut();
        let transitions = transitions.zip(other.transitions.as_flattened().as_flattened());
        let features = self.features.iter_mut().zip(&other.features);
        for (count, more) in statuses.chain(transitions).chain(features) {
            *count += more;
        }
    }
}

/// Writes the tables, with a dot for cases that cannot occur, and a zero for cases that did not occur.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16}", "verb")?;
        (0..COLUMNS).try_for_each(|column| write!(f, "{:>10}", heading(column)))?;
        for verb in Verb::ALL {
            write!(f, "\n{:<16}", format!("{verb:?}"))?;
            for (column, count) in self.statuses[verb as usize].iter().enumerate() {
                write_cell(f, *count, is_reachable(verb, column))?;
            }
        }
        write!(f, "\n\n{:<20}", "from \\ to")?;
        State::ALL.iter().try_for_each(|to| write!(f, "{:>21}", to.to_string()))?;
        for from in State::ALL {
            write!(f, "\n{:<20}", from.to_string())?;
            for to in State::ALL {
                let [refused, done] = self.transitions[from as usize][to as usize];
                let (count, outcome) =
                    if from.may_become(to) { (done, "done") } else { (refused, "refused") };
                match from {
                    State::SendError => write!(f, "{:>21}", '.')?, // datagrams only
                    _ => write!(f, "{:>21}", format!("{count} {outcome}"))?,
                }
            }
        }
        writeln!(f, "\n")?;
        for (what, count) in Feature::ALL.iter().zip(self.features) {
            write!(f, "{what:?} {count}, ")?;
        }
        Ok(())
    }
}

/// Writes the count of a case, or a dot if the case cannot occur.
fn write_cell(f: &mut fmt::Formatter<'_>, count: u64, reachable: bool) -> fmt::Result {
    match count {
        0 if !reachable => write!(f, "{:>10}", '.'),
        _ => write!(f, "{count:>10}"),
    }
}
