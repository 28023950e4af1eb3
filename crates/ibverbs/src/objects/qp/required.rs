//! Which attributes each state transition requires and allows. Linux checks every `ibv_modify_qp` of an
//! InfiniBand or RoCE adapter against this table before it calls the driver.

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

/// Allowed for every connected type once it is ready.
const CONNECTED: u32 = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
const ADDRESS: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const RESPONDER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
const REQUESTER: u32 = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

/// Returns why a transition with these attributes is not possible, or `None` if it is.
pub(super) fn wrong(kind: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state, mask: u32) -> Option<String> {
    let step = format_args!("{} to {}", state_name(from), state_name(to));
    let known = matches!(from, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE);
    if mask & IBV_QP_CUR_STATE != 0 && !known {
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
    let Some((needed, allowed)) = attributes(kind, from, to) else {
        return Some(format!("no transition from {step}"));
    };
    let (lacks, extra) = (needed & !mask, mask & !(needed | allowed | IBV_QP_STATE));
    match (lacks, extra) {
        (0, 0) => None,
        (0, _) => Some(format!("the transition from {step} does not allow {}", Names(extra))),
        _ => Some(format!("the transition from {step} requires {}", Names(lacks))),
    }
}

fn state_name(state: ibv_qp_state) -> &'static str {
    let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    names.get(state as usize).copied().unwrap_or("an unknown state")
}

/// The names of the bits of a mask.
struct Names(u32);

/// In order of the bits.
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

/// Required and allowed attributes of a transition, or `None` if there is no such transition.
fn attributes(kind: Kind, from: ibv_qp_state, to: ibv_qp_state) -> Option<(u32, u32)> {
    let steps = match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => (0, 0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => (to_init(kind), 0),
        (IBV_QPS_INIT, IBV_QPS_INIT) => (0, to_init(kind)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => to_rtr(kind),
        (IBV_QPS_RTR, IBV_QPS_RTS) => {
            (to_rts(kind), while_up(kind) | if kind == Kind::XrcReceive { REQUESTER } else { 0 })
        }
        (IBV_QPS_RTS | IBV_QPS_SQD, IBV_QPS_RTS) => (0, while_up(kind)),
        (IBV_QPS_RTS, IBV_QPS_SQD) => (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        (IBV_QPS_SQD, IBV_QPS_SQD) => (0, while_drained(kind)),
        (IBV_QPS_SQE, IBV_QPS_RTS) if kind == Kind::Ud => (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        (IBV_QPS_SQE, IBV_QPS_RTS) if kind == Kind::Uc => (0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS),
        _ => return None,
    };
    Some(steps)
}

fn to_init(kind: Kind) -> u32 {
    let own = if kind == Kind::Ud { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | own
}

fn to_rtr(kind: Kind) -> (u32, u32) {
    let allowed = IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX;
    match kind {
        Kind::Ud => (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        Kind::Uc => (ADDRESS, allowed),
        // Linux allows fewer attributes, but perftest sets these.
        Kind::XrcSend => (ADDRESS, allowed | RESPONDER),
        Kind::Rc | Kind::XrcReceive => (ADDRESS | RESPONDER, allowed),
    }
}

fn to_rts(kind: Kind) -> u32 {
    match kind {
        Kind::Ud | Kind::Uc => IBV_QP_SQ_PSN,
        Kind::Rc | Kind::XrcSend => IBV_QP_SQ_PSN | REQUESTER,
        Kind::XrcReceive => IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
    }
}

fn while_up(kind: Kind) -> u32 {
    match kind {
        Kind::Ud => IBV_QP_CUR_STATE | IBV_QP_QKEY,
        Kind::Uc | Kind::XrcSend => CONNECTED,
        Kind::Rc | Kind::XrcReceive => CONNECTED | IBV_QP_MIN_RNR_TIMER,
    }
}

fn while_drained(kind: Kind) -> u32 {
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
        wrong(kind, from, to, mask).is_none()
    }

    #[test]
    fn errors_name_the_attributes() {
        let named = |mask| wrong(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, mask).unwrap_or_default();
        assert_eq!(
            named(RTR & !(IBV_QP_AV | IBV_QP_DEST_QPN)),
            "the transition from INIT to RTR requires IBV_QP_AV, IBV_QP_DEST_QPN"
        );
        assert_eq!(named(RTR | IBV_QP_QKEY), "the transition from INIT to RTR does not allow IBV_QP_QKEY");
        assert_eq!(named(RTR | 1 << 31), "the transition from INIT to RTR does not allow 0x80000000");
        let none = wrong(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QP_STATE);
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
