//! The attributes that each state transition of a queue pair requires and allows. Linux checks every
//! `ibv_modify_qp` of an InfiniBand or RoCE adapter against such a table (`qp_state_table`) before it calls the
//! driver.

use crate::abi::*;
use std::fmt;

/// The types of queue pairs that the table distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ud,
    Uc,
    Rc,
    XrcSend,
    XrcReceive,
}

/// Attributes that every connected type allows in a transition to RTS.
const CONNECTED: u32 = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
/// Attributes that name the peer of a connected queue pair.
const ADDRESS: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
/// Attributes of the responder, which serves requests of the peer.
const RESPONDER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
/// Attributes of the requester, which sends requests to the peer.
const REQUESTER: u32 = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

/// Checks a transition that sets the attributes of `mask`. Returns why the transition is not possible, or `None` if
/// it is possible.
pub(super) fn check_transition(
    kind: ibv_qp_type,
    from: ibv_qp_state,
    to: ibv_qp_state,
    mask: u32,
) -> Option<String> {
    let step = format_args!("{} to {}", state_name(from), state_name(to));
    let allows_cur_state = matches!(from, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE);
    if mask & IBV_QP_CUR_STATE != 0 && !allows_cur_state {
        return Some(format!(
            "IBV_QP_CUR_STATE is allowed in RTR, RTS, SQD and SQE, but the state is {}",
            state_name(from)
        ));
    }
    let kind = match kind {
        IBV_QPT_UD => Kind::Ud,
        IBV_QPT_UC => Kind::Uc,
        IBV_QPT_XRC_SEND => Kind::XrcSend,
        IBV_QPT_XRC_RECV => Kind::XrcReceive,
        _ => Kind::Rc,
    };
    let Some(Attributes { required, allowed }) = attributes(kind, from, to) else {
        return Some(format!("no transition from {step}"));
    };
    let (missing, extra) = (required & !mask, mask & !(required | allowed | IBV_QP_STATE));
    match (missing, extra) {
        (0, 0) => None,
        (0, _) => Some(format!("the transition from {step} does not allow {}", Names(extra))),
        _ => Some(format!("the transition from {step} requires {}", Names(missing))),
    }
}

/// Returns the name of a state in the manual pages.
fn state_name(state: ibv_qp_state) -> &'static str {
    let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    names.get(state as usize).copied().unwrap_or("an unknown state")
}

/// A mask of attributes. Displays the names of its bits.
struct Names(u32);

/// The names of the attributes, indexed by bit.
const NAMES: [&str; 21] = [
    "IBV_QP_STATE",
    "IBV_QP_CUR_STATE",
    "IBV_QP_EN_SQD_ASYNC_NOTIFY",
    "IBV_QP_ACCESS_FLAGS",
    "IBV_QP_PKEY_INDEX",
    "IBV_QP_PORT",
    "IBV_QP_QKEY",
    "IBV_QP_AV",
    "IBV_QP_PATH_MTU",
    "IBV_QP_TIMEOUT",
    "IBV_QP_RETRY_CNT",
    "IBV_QP_RNR_RETRY",
    "IBV_QP_RQ_PSN",
    "IBV_QP_MAX_QP_RD_ATOMIC",
    "IBV_QP_ALT_PATH",
    "IBV_QP_MIN_RNR_TIMER",
    "IBV_QP_SQ_PSN",
    "IBV_QP_MAX_DEST_RD_ATOMIC",
    "IBV_QP_PATH_MIG_STATE",
    "IBV_QP_CAP",
    "IBV_QP_DEST_QPN",
];

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut comma = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if rest & 1 << bit != 0 {
                write!(f, "{comma}{name}")?;
                (rest, comma) = (rest & !(1 << bit), ", ");
            }
        }
        if rest == 0 { Ok(()) } else { write!(f, "{comma}{rest:#x}") }
    }
}

/// The attributes of a transition, as masks. `IBV_QP_STATE` is always allowed and in neither of them.
struct Attributes {
    required: u32,
    /// Those that may be set in addition to the required ones.
    allowed: u32,
}

/// Returns the attributes of a transition, or `None` if there is no such transition.
fn attributes(kind: Kind, from: ibv_qp_state, to: ibv_qp_state) -> Option<Attributes> {
    let (required, allowed) = match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => (init_attributes(kind), 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => (0, init_attributes(kind)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => return Some(rtr_attributes(kind)),
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            let more = if kind == Kind::XrcReceive { REQUESTER } else { 0 };
            (rts_required(kind), rts_allowed(kind) | more)
        }
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => (0, rts_allowed(kind)),
        (IBV_QPS_RTS, IBV_QPS_SQD) => (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_SQD) => (0, sqd_allowed(kind)),
        (IBV_QPS_SQE, IBV_QPS_RTS) if kind == Kind::Ud => (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        (IBV_QPS_SQE, IBV_QPS_RTS) if kind == Kind::Uc => (0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS),
        _ => return None,
    };
    Some(Attributes { required, allowed })
}

/// Returns the attributes of INIT, which the transition from RESET requires and the one from INIT allows.
fn init_attributes(kind: Kind) -> u32 {
    let own = if kind == Kind::Ud { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | own
}

/// Returns the attributes of the transition from INIT to RTR.
fn rtr_attributes(kind: Kind) -> Attributes {
    let allowed = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
    let (required, allowed) = match kind {
        Kind::Ud => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        Kind::Uc => (ADDRESS, allowed),
        // Linux does not allow the attributes of a responder for this type, but perftest sets them.
        Kind::XrcSend => (ADDRESS, allowed | RESPONDER),
        Kind::Rc | Kind::XrcReceive => (ADDRESS | RESPONDER, allowed),
    };
    Attributes { required, allowed }
}

/// Returns the attributes that the transition from RTR to RTS requires.
fn rts_required(kind: Kind) -> u32 {
    match kind {
        Kind::Ud | Kind::Uc => IBV_QP_SQ_PSN,
        Kind::Rc | Kind::XrcSend => IBV_QP_SQ_PSN | REQUESTER,
        Kind::XrcReceive => IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
    }
}

/// Returns the attributes that a transition from RTR, RTS or SQD to RTS allows.
fn rts_allowed(kind: Kind) -> u32 {
    match kind {
        Kind::Ud => IBV_QP_CUR_STATE | IBV_QP_QKEY,
        Kind::Uc | Kind::XrcSend => CONNECTED,
        Kind::Rc | Kind::XrcReceive => CONNECTED | IBV_QP_MIN_RNR_TIMER,
    }
}

/// Returns the attributes that can be changed in SQD.
fn sqd_allowed(kind: Kind) -> u32 {
    let path = IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE;
    match kind {
        Kind::Ud => IBV_QP_PKEY_INDEX | IBV_QP_QKEY,
        Kind::Uc => path,
        Kind::Rc => path | IBV_QP_PORT | REQUESTER | RESPONDER,
        Kind::XrcSend => path | IBV_QP_PORT | REQUESTER,
        Kind::XrcReceive => path | IBV_QP_PORT | IBV_QP_TIMEOUT | RESPONDER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ok(kind: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state, mask: u32) -> bool {
        check_transition(kind, from, to, mask).is_none()
    }

    #[test]
    fn errors_name_the_attributes() {
        let named = |mask| check_transition(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, mask).unwrap_or_default();
        assert_eq!(
            named(RTR & !(IBV_QP_AV | IBV_QP_DEST_QPN)),
            "the transition from INIT to RTR requires IBV_QP_AV, IBV_QP_DEST_QPN"
        );
        assert_eq!(named(RTR | IBV_QP_QKEY), "the transition from INIT to RTR does not allow IBV_QP_QKEY");
        assert_eq!(named(RTR | 1 << 31), "the transition from INIT to RTR does not allow 0x80000000");
        let none = check_transition(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QP_STATE);
        assert_eq!(none.as_deref(), Some("no transition from RESET to RTS"));
    }

    const RTR: u32 = IBV_QP_STATE | ADDRESS | RESPONDER;

    #[test]
    fn transitions_require_the_attributes_of_the_table() {
        assert!(is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR));
        for bit in [IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MIN_RNR_TIMER] {
            assert!(!is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR & !bit), "without {bit:#x}");
        }
    }

    #[test]
    fn transitions_reject_attributes_outside_the_table() {
        assert!(is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR | IBV_QP_ACCESS_FLAGS));
        assert!(!is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR | IBV_QP_QKEY));
        assert!(!is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR | IBV_QP_CUR_STATE));
        assert!(!is_ok(IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, RTR), "it has no responder");
        assert!(!is_ok(IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    }

    #[test]
    fn other_transitions_are_rejected() {
        for (from, to) in [
            (IBV_QPS_RESET, IBV_QPS_RTR),
            (IBV_QPS_INIT, IBV_QPS_RTS),
            (IBV_QPS_ERR, IBV_QPS_INIT),
            (IBV_QPS_RTR, IBV_QPS_RTR),
            (IBV_QPS_RTS, IBV_QPS_RTR),
        ] {
            assert!(!is_ok(IBV_QPT_RC, from, to, !IBV_QP_CUR_STATE), "{from} to {to}");
        }
        for from in [IBV_QPS_RESET, IBV_QPS_RTS, IBV_QPS_ERR] {
            assert!(is_ok(IBV_QPT_RC, from, IBV_QPS_RESET, IBV_QP_STATE));
            assert!(is_ok(IBV_QPT_RC, from, IBV_QPS_ERR, IBV_QP_STATE));
        }
    }
}
