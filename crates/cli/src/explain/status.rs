//! Explains completion statuses (`ibv_wc_status`).

use super::explanation::{Explanation, at_fault, normalise};
use ironwarp::queue::ErrorOrigin;

/// A completion status. Its index in the table is its number.
struct Row {
    /// The name without `IBV_WC_`.
    name: &'static str,
    /// The text of `ibv_wc_status_str`.
    text: &'static str,
    /// What happened.
    what: &'static str,
    /// Who caused it.
    origin: ErrorOrigin,
    /// Typical causes.
    causes: &'static [&'static str],
    /// Where to look next.
    look: &'static [&'static str],
}

/// Returns the explanation of the status with this number.
pub(super) fn by_number(number: u32) -> Option<Explanation> {
    let index = usize::try_from(number).ok()?;
    ROWS.get(index).map(|row| explain_row(index, row))
}

/// Returns the explanation of the status with this name, with or without `IBV_WC_`, or with this text.
pub(super) fn by_name(name: &str) -> Option<Explanation> {
    let normalised = normalise(name);
    let matches = |row: &Row| {
        let full = normalise(&format!("IBV_WC_{}", row.name));
        ["", "ibv ", "ibv wc "].iter().any(|prefix| full.strip_prefix(prefix) == Some(&normalised))
            || normalise(row.text) == normalised
    };
    let index = ROWS.iter().position(matches)?;
    Some(explain_row(index, &ROWS[index]))
}

/// Returns the explanation of a row of the table.
fn explain_row(number: usize, row: &Row) -> Explanation {
    Explanation {
        title: format!("IBV_WC_{} ({number}), completion status: {}", row.name, row.text),
        what: row.what.to_owned(),
        at_fault: if row.causes.is_empty() && row.look.is_empty() { NOBODY } else { at_fault(row.origin) },
        causes: row.causes,
        look: row.look,
    }
}

const NOBODY: &str = "nobody";
const LOG: &str = "the line that Ironwarp wrote to standard error (IRONWARP_LOG=warn): it names queue pair, request and peer";
const VENDOR: &str = "`ironwarp explain` with the vendor_err of the completion: it names the exact check, or the peer's Terminate";
const FIRST: &str = "the first completion with another status: it has the cause, flushed ones only follow";

/// Returns the row of a status without causes: success, or a status that only other kinds of adapters report.
const fn unreported(name: &'static str, text: &'static str, what: &'static str) -> Row {
    Row { name, text, what, origin: ErrorOrigin::Nobody, causes: &[], look: &[] }
}

const OF_RD: &str = "reliable datagrams, which no adapter supports: never reported by Ironwarp";
const OF_TAGS: &str = "tag matching, which some InfiniBand adapters support: never reported by Ironwarp";

/// All statuses, in numerical order.
const ROWS: &[Row] = &[
    unreported("SUCCESS", "success", "the request completed successfully"),
    Row {
        name: "LOC_LEN_ERR",
        text: "local length error",
        what: "a message did not fit its receive, or a request was too long",
        origin: ErrorOrigin::Program,
        causes: &[
            "the peer sends messages that are longer than the receives of this program",
            "a datagram (UD): the receive has no room for the 40 bytes of the GRH before the data",
            "a datagram longer than the MTU of the port",
        ],
        look: &["the lengths of the receive at this end and of the send at the other end", LOG],
    },
    Row {
        name: "LOC_QP_OP_ERR",
        text: "local QP operation error",
        what: "the queue pair could not perform the request",
        origin: ErrorOrigin::Program,
        causes: &[
            "a Send with Immediate to a peer that is not Ironwarp: iWARP has no such message",
            "an inconsistent request, such as an atomic operation without a buffer for its result",
        ],
        look: &[VENDOR, LOG],
    },
    unreported("LOC_EEC_OP_ERR", "local EE context operation error", OF_RD),
    Row {
        name: "LOC_PROT_ERR",
        text: "local protection error",
        what: "a buffer of the request is not registered, or not for this access",
        origin: ErrorOrigin::Program,
        causes: &[
            "the lkey is wrong, or was deregistered while the request was outstanding",
            "the address or length is outside the region",
            "the region belongs to a different protection domain than the queue pair",
            "a receive, or the sink of a Read, in a region without IBV_ACCESS_LOCAL_WRITE",
            "the memory was unmapped (munmap, free of a large block) while still registered",
        ],
        look: &[VENDOR, LOG],
    },
    Row {
        name: "WR_FLUSH_ERR",
        text: "Work Request Flushed Error",
        what: "the queue pair entered the error state before the request completed",
        origin: ErrorOrigin::Nobody,
        causes: &[
            "another request of the same queue pair failed earlier",
            "this end disconnected, or moved the queue pair to the error state",
            "the peer closed the connection: receives that are still posted are flushed, which is normal",
        ],
        look: &[FIRST, VENDOR],
    },
    Row {
        name: "MW_BIND_ERR",
        text: "memory management operation error",
        what: "a work request failed to bind a window, or to register or invalidate memory",
        origin: ErrorOrigin::Program,
        causes: &[
            "the region was registered without IBV_ACCESS_MW_BIND",
            "the range or rights of the window exceed those of the region",
            "the window belongs to a different protection domain",
        ],
        look: &[VENDOR, LOG],
    },
    Row {
        name: "BAD_RESP_ERR",
        text: "bad response error",
        what: "the peer answered a Read or an atomic operation incorrectly",
        origin: ErrorOrigin::Peer,
        causes: &[
            "a bug in another implementation at the other end",
            "a middlebox that modifies the traffic",
        ],
        look: &[VENDOR, "the traffic: `ironwarp run --pcap FILE`"],
    },
    Row {
        name: "LOC_ACCESS_ERR",
        text: "local access error",
        what: "a message of the peer could not be placed in the memory of this program",
        origin: ErrorOrigin::Peer,
        causes: &[
            "the peer writes without access rights, and the receive at this end fails with it",
            "the memory of a receive was unmapped before the message arrived",
        ],
        look: &[VENDOR, LOG],
    },
    Row {
        name: "REM_INV_REQ_ERR",
        text: "remote invalid request error",
        what: "the peer does not accept such a message",
        origin: ErrorOrigin::Program,
        causes: &[
            "the message is longer than the peer's receive",
            "the peer's queue pair does not allow the operation",
            "more Reads at once than the peer agreed to (initiator_depth here, responder_resources there)",
        ],
        look: &[VENDOR, "the receives that the program at the other end posts"],
    },
    Row {
        name: "REM_ACCESS_ERR",
        text: "remote access error",
        what: "the peer denied access to its memory, and ended the connection",
        origin: ErrorOrigin::Program,
        causes: &[
            "the rkey is wrong, or the peer has deregistered the memory",
            "the address or length is outside the peer's region",
            "the peer registered it without IBV_ACCESS_REMOTE_WRITE, _READ or _ATOMIC",
            "the peer's queue pair lacks the right (qp_access_flags), or belongs to a different protection domain",
            "the rkey and address were exchanged in the wrong byte order",
        ],
        look: &[VENDOR, LOG, "ibv_reg_mr at the other end: address, length, access"],
    },
    Row {
        name: "REM_OP_ERR",
        text: "remote operation error",
        what: "the peer could not perform the request",
        origin: ErrorOrigin::Peer,
        causes: &[
            "memory that the peer registered, or posted a receive for, was unmapped there",
            "the peer's adapter or completion queue failed",
        ],
        look: &[VENDOR, "the output of the program at the other end"],
    },
    Row {
        name: "RETRY_EXC_ERR",
        text: "transport retry counter exceeded",
        what: "the peer did not answer, or the connection was lost before",
        origin: ErrorOrigin::Network,
        causes: &[
            "the program at the other end exited, crashed, or destroyed its queue pair",
            "wrong GID, queue pair number or address",
            "a firewall: IRONWARP_PORTS sets the ports in use",
            "`timeout` and `retry_cnt` of the queue pair are too small for a peer that starts slowly",
        ],
        look: &[
            VENDOR,
            "`ironwarp devices` on both ends: does the exchanged address exist, and is it reachable?",
        ],
    },
    Row {
        name: "RNR_RETRY_EXC_ERR",
        text: "RNR retry counter exceeded",
        what: "the peer did not post a receive in time",
        origin: ErrorOrigin::Peer,
        causes: &[
            "the program at the other end posts receives too late, or too few of them",
            "`rnr_retry` is less than 7 (which means forever), or `min_rnr_timer` is short",
        ],
        look: &[
            "the number of receives posted there before the connection is established and after each completion",
        ],
    },
    unreported("LOC_RDD_VIOL_ERR", "local RDD violation error", OF_RD),
    unreported("REM_INV_RD_REQ_ERR", "remote invalid RD request", OF_RD),
    unreported("REM_ABORT_ERR", "aborted error", OF_RD),
    unreported("INV_EECN_ERR", "invalid EE context number", OF_RD),
    unreported("INV_EEC_STATE_ERR", "invalid EE context state", OF_RD),
    Row {
        name: "FATAL_ERR",
        text: "fatal error",
        what: "the adapter has stopped, and no further request completes",
        origin: ErrorOrigin::Program,
        causes: &["the program did not take asynchronous events until their queue overflowed"],
        look: &["ibv_get_async_event: is it called, and are events acknowledged?", LOG],
    },
    Row {
        name: "RESP_TIMEOUT_ERR",
        text: "response timeout error",
        what: "the peer took too long to answer",
        origin: ErrorOrigin::Network,
        causes: &["the peer is stopped (debugger, SIGSTOP), or the network has failed"],
        look: &[VENDOR],
    },
    Row {
        name: "GENERAL_ERR",
        text: "general error",
        what: "none of the other statuses fits",
        origin: ErrorOrigin::Program,
        causes: &["a system error, such as out of memory"],
        look: &[VENDOR, LOG],
    },
    unreported("TM_ERR", "TM error", OF_TAGS),
    unreported("TM_RNDV_INCOMPLETE", "TM software rendezvous", OF_TAGS),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of <infiniband/verbs.h>, and texts of the real library.
    #[test]
    fn numbers_are_those_of_the_verbs() {
        assert_eq!(ROWS.len(), 24);
        for (number, name) in [
            (0, "SUCCESS"),
            (4, "LOC_PROT_ERR"),
            (5, "WR_FLUSH_ERR"),
            (10, "REM_ACCESS_ERR"),
            (12, "RETRY_EXC_ERR"),
            (19, "FATAL_ERR"),
            (21, "GENERAL_ERR"),
            (23, "TM_RNDV_INCOMPLETE"),
        ] {
            assert_eq!(ROWS[number].name, name);
        }
    }

    #[test]
    fn every_status_is_found_by_its_own_words() {
        for (number, row) in ROWS.iter().enumerate() {
            for name in [row.name, row.text, &format!("IBV_WC_{}", row.name)] {
                let title = by_name(name).expect("known code").title;
                assert!(title.starts_with(&format!("IBV_WC_{} ({number}), ", row.name)), "{name}: {title}");
            }
        }
    }
}
