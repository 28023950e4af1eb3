//! Which attributes each step between states needs, and which it may have: the table by which Linux judges every
//! `ibv_modify_qp` of an InfiniBand or RoCE adapter, before its driver sees it.

use crate::abi::*;
use std::fmt;

/// The types, as far as the table tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ud,
    Uc,
    Rc,
    XrcSend,
    XrcReceive,
}

/// What goes with every type that has a connection, once it is up.
const CONNECTED: u32 = IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE;
const ADDRESS: u32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
const RESPONDER: u32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
const REQUESTER: u32 = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

/// Why these attributes will not do for a step of a queue pair of this type, if they do not.
pub(super) fn wrong(kind: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state, mask: u32) -> Option<String> {
    let step = format_args!("{} to {}", state_name(from), state_name(to));
    let known = matches!(from, IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD | IBV_QPS_SQE);
    if mask & IBV_QP_CUR_STATE != 0 && !known {
        return Some(format!(
            "IBV_QP_CUR_STATE goes with RTR, RTS, SQD and SQE, the state is {}",
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
        return Some(format!("there is no step from {step}"));
    };
    let (lacks, extra) = (needed & !mask, mask & !(needed | allowed | IBV_QP_STATE));
    match (lacks, extra) {
        (0, 0) => None,
        (0, _) => Some(format!("the step from {step} may not have {}", Names(extra))),
        _ => Some(format!("the step from {step} needs {}", Names(lacks))),
    }
}

fn state_name(state: ibv_qp_state) -> &'static str {
    let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    names.get(state as usize).copied().unwrap_or("an unknown state")
}

/// Bits of a mask by their names.
struct Names(u32);

/// In the order of their bits, from the first.
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

/// What a step needs, and what it may have besides; none if there is no such step.
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
        // Linux wants no more of it, but perftest has more.
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
    fn what_is_wrong_is_named() {
        let named = |mask| wrong(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, mask).unwrap_or_default();
        assert_eq!(
            named(RTR & !(IBV_QP_AV | IBV_QP_DEST_QPN)),
            "the step from INIT to RTR needs IBV_QP_AV, IBV_QP_DEST_QPN"
        );
        assert_eq!(named(RTR | IBV_QP_QKEY), "the step from INIT to RTR may not have IBV_QP_QKEY");
        assert_eq!(named(RTR | 1 << 31), "the step from INIT to RTR may not have 0x80000000");
        let none = wrong(IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_RTS, IBV_QP_STATE);
        assert_eq!(none.as_deref(), Some("there is no step from RESET to RTS"));
    }

    const RTR: u32 = IBV_QP_STATE | ADDRESS | RESPONDER;

    #[test]
    fn a_step_needs_all_that_the_table_asks_for() {
        assert!(is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR));
        for bit in [IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN, IBV_QP_MIN_RNR_TIMER] {
            assert!(!is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR & !bit), "without {bit:#x}");
        }
    }

    #[test]
    fn a_step_has_nothing_that_the_table_does_not_know() {
        assert!(is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR | IBV_QP_ACCESS_FLAGS));
        assert!(!is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR | IBV_QP_QKEY));
        assert!(!is_ok(IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR, RTR | IBV_QP_CUR_STATE));
        assert!(!is_ok(IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR, RTR), "it has no responder");
        assert!(!is_ok(IBV_QPT_UD, IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
    }

    #[test]
    fn there_are_no_other_steps() {
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
