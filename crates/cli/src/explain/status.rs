//! The statuses of completions (`ibv_wc_status`), and what makes Ironwarp give each.

use super::{Explanation, whose, words};
use ironwarp::Culprit;

struct Row {
    /// Without `IBV_WC_`. Its place in the table is its number.
    name: &'static str,
    /// What `ibv_wc_status_str` calls it.
    words: &'static str,
    what: &'static str,
    culprit: Culprit,
    causes: &'static [&'static str],
    look: &'static [&'static str],
}

pub(super) fn by_number(number: u32) -> Option<Explanation> {
    let index = usize::try_from(number).ok()?;
    ROWS.get(index).map(|row| explanation(index, row))
}

pub(super) fn by_name(name: &str) -> Option<Explanation> {
    let wanted = words(name);
    let names = |row: &Row| {
        let full = words(&format!("IBV_WC_{}", row.name));
        ["", "ibv ", "ibv wc "].iter().any(|prefix| full.strip_prefix(prefix) == Some(&wanted))
            || words(row.words) == wanted
    };
    let index = ROWS.iter().position(names)?;
    Some(explanation(index, &ROWS[index]))
}

fn explanation(number: usize, row: &Row) -> Explanation {
    Explanation {
        title: format!("IBV_WC_{} ({number}), completion status: {}", row.name, row.words),
        what: row.what.to_owned(),
        whose: if row.causes.is_empty() && row.look.is_empty() { NOBODY } else { whose(row.culprit) },
        causes: row.causes,
        look: row.look,
    }
}

const NOBODY: &str = "nobody's";
const LOG: &str = "the line that Ironwarp wrote to the standard error (IRONWARP_LOG=warn): it names queue pair, request and peer";
const VENDOR: &str =
    "`ironwarp explain` with the completion's vendor_err: it has the exact check, or the peer's Terminate";
const FIRST: &str =
    "the first completion with another status: that one says why, the flushed ones only follow";

/// One that only other kinds of adapters give.
const fn never(name: &'static str, words: &'static str, what: &'static str) -> Row {
    Row { name, words, what, culprit: Culprit::Nobody, causes: &[], look: &[] }
}

const OF_RD: &str = "of reliable datagrams, which no adapter has: Ironwarp never gives it";
const OF_TAGS: &str = "of tag matching, which some InfiniBand adapters have: Ironwarp never gives it";

/// In the order of their numbers.
const ROWS: &[Row] = &[
    never("SUCCESS", "success", "the request was done as it was meant: there is nothing to explain"),
    Row {
        name: "LOC_LEN_ERR",
        words: "local length error",
        what: "a message did not fit the receive that it got, or a request was longer than one can be",
        culprit: Culprit::Program,
        causes: &[
            "the peer sends more than this program's receives have room for",
            "a datagram (UD): the receive has no room for the 40 bytes of the GRH in front of the data",
            "a datagram longer than the port's MTU",
        ],
        look: &["the lengths of what is posted: the receive here, the send there", LOG],
    },
    Row {
        name: "LOC_QP_OP_ERR",
        words: "local QP operation error",
        what: "the queue pair could not do the request",
        culprit: Culprit::Program,
        causes: &[
            "a Send with Immediate to a peer that is no Ironwarp: iWARP has no such message",
            "an inconsistent request, such as an atomic operation with no place for its result",
        ],
        look: &[VENDOR, LOG],
    },
    never("LOC_EEC_OP_ERR", "local EE context operation error", OF_RD),
    Row {
        name: "LOC_PROT_ERR",
        words: "local protection error",
        what: "a buffer of the request is not registered, or not for this use",
        culprit: Culprit::Program,
        causes: &[
            "the lkey is wrong, or was deregistered while the request was under way",
            "the address or length goes beyond the region",
            "the region is of another protection domain than the queue pair",
            "a receive or the sink of a Read in a region without IBV_ACCESS_LOCAL_WRITE",
            "the memory was unmapped (munmap, free of a large block) and is still registered",
        ],
        look: &[VENDOR, LOG],
    },
    Row {
        name: "WR_FLUSH_ERR",
        words: "Work Request Flushed Error",
        what: "the queue pair went to the error state before the request was done",
        culprit: Culprit::Nobody,
        causes: &[
            "another request of the same queue pair failed before",
            "this end disconnected, or moved the queue pair to the error state",
            "the peer closed: receives that were still posted come back like this, and all is well",
        ],
        look: &[FIRST, VENDOR],
    },
    Row {
        name: "MW_BIND_ERR",
        words: "memory management operation error",
        what: "a window could not be bound, or memory not registered or invalidated, by work request",
        culprit: Culprit::Program,
        causes: &[
            "the region was registered without IBV_ACCESS_MW_BIND",
            "the window's range or rights go beyond the region's",
            "the window is of another protection domain",
        ],
        look: &[VENDOR, LOG],
    },
    Row {
        name: "BAD_RESP_ERR",
        words: "bad response error",
        what: "the peer answered a Read or an atomic operation with something that does not belong to it",
        culprit: Culprit::Peer,
        causes: &[
            "another implementation at the other end, with a fault",
            "a middlebox that changes what it passes",
        ],
        look: &[VENDOR, "the wire: `ironwarp run --pcap FILE`"],
    },
    Row {
        name: "LOC_ACCESS_ERR",
        words: "local access error",
        what: "the peer's message could not be placed into memory of this program",
        culprit: Culprit::Peer,
        causes: &[
            "the peer writes where it has no right to, and this end's receive is told with the others",
            "a receive's memory was unmapped before the message came",
        ],
        look: &[VENDOR, LOG],
    },
    Row {
        name: "REM_INV_REQ_ERR",
        words: "remote invalid request error",
        what: "the peer does not accept such a message",
        culprit: Culprit::Program,
        causes: &[
            "the message is longer than the receive that the peer posted",
            "the peer's queue pair does not allow the operation",
            "more Reads at once than the peer agreed to (initiator_depth here, responder_resources there)",
        ],
        look: &[VENDOR, "the receives of the program at the other end"],
    },
    Row {
        name: "REM_ACCESS_ERR",
        words: "remote access error",
        what: "the peer refused access to its memory, and ended the connection",
        culprit: Culprit::Program,
        causes: &[
            "the rkey is wrong, or the peer deregistered the memory meanwhile",
            "the address or length goes beyond the peer's region",
            "the peer registered it without IBV_ACCESS_REMOTE_WRITE, _READ or _ATOMIC",
            "the peer's queue pair lacks the right (qp_access_flags), or is of another protection domain",
            "the rkey and address were exchanged in another byte order",
        ],
        look: &[VENDOR, LOG, "ibv_reg_mr of the program at the other end: address, length, access"],
    },
    Row {
        name: "REM_OP_ERR",
        words: "remote operation error",
        what: "the peer could not do the request",
        culprit: Culprit::Peer,
        causes: &[
            "memory that the peer registered, or posted a receive with, is unmapped there",
            "the peer's adapter or completion queue failed",
        ],
        look: &[VENDOR, "what the program at the other end says"],
    },
    Row {
        name: "RETRY_EXC_ERR",
        words: "transport retry counter exceeded",
        what: "the peer did not answer, or the connection was lost before it did",
        culprit: Culprit::Network,
        causes: &[
            "the program at the other end has ended, crashed, or destroyed its queue pair",
            "wrong GID, queue pair number or address: nobody is there",
            "a firewall lets nothing through: IRONWARP_PORTS sets the ports that are used",
            "`timeout` and `retry_cnt` of the queue pair are too small for a slow start of the other end",
        ],
        look: &[
            VENDOR,
            "`ironwarp devices` at both ends: is the address that was exchanged there, and reachable?",
        ],
    },
    Row {
        name: "RNR_RETRY_EXC_ERR",
        words: "RNR retry counter exceeded",
        what: "the peer posted no receive in time",
        culprit: Culprit::Peer,
        causes: &[
            "the program at the other end posts its receives too late, or too few of them",
            "`rnr_retry` is less than 7, which means for ever; or `min_rnr_timer` is short",
        ],
        look: &[
            "the number of receives posted there, before the connection is made and after each completion",
        ],
    },
    never("LOC_RDD_VIOL_ERR", "local RDD violation error", OF_RD),
    never("REM_INV_RD_REQ_ERR", "remote invalid RD request", OF_RD),
    never("REM_ABORT_ERR", "aborted error", OF_RD),
    never("INV_EECN_ERR", "invalid EE context number", OF_RD),
    never("INV_EEC_STATE_ERR", "invalid EE context state", OF_RD),
    Row {
        name: "FATAL_ERR",
        words: "fatal error",
        what: "the adapter has stopped, and can complete nothing any more",
        culprit: Culprit::Program,
        causes: &["nobody took asynchronous events, until there was no room for more"],
        look: &["ibv_get_async_event: is it called, and acknowledged?", LOG],
    },
    Row {
        name: "RESP_TIMEOUT_ERR",
        words: "response timeout error",
        what: "an answer took too long",
        culprit: Culprit::Network,
        causes: &["the peer is stopped (a debugger, SIGSTOP), or the network lost it"],
        look: &[VENDOR],
    },
    Row {
        name: "GENERAL_ERR",
        words: "general error",
        what: "none of the other statuses fits",
        culprit: Culprit::Program,
        causes: &["a failure of the system below the adapter, such as no memory"],
        look: &[VENDOR, LOG],
    },
    never("TM_ERR", "TM error", OF_TAGS),
    never("TM_RNDV_INCOMPLETE", "TM software rendezvous", OF_TAGS),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// As <infiniband/verbs.h> numbers them, and as the real library calls them.
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
            for name in [row.name, row.words, &format!("IBV_WC_{}", row.name)] {
                let title = by_name(name).expect("it is there").title;
                assert!(title.starts_with(&format!("IBV_WC_{} ({number}), ", row.name)), "{name}: {title}");
            }
        }
    }
}
