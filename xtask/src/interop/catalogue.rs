//! The programs that are run against siw, and what they must print.

use std::fmt;

/// A program, or one way to run it. Words in braces are replaced by the server's address and port.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) server: &'static [&'static str],
    pub(super) client: &'static [&'static str],
    /// What both ends must print, besides ending with success.
    pub(super) prints: Prints,
    pub(super) personas: &'static [&'static str],
    pub(super) path: Path,
    /// What its end on siw prints after its results if it fails because of a known race, of siw or its own. Empty if
    /// it must not fail.
    pub(super) may_say: &'static [&'static str],
}

/// How the client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Direct,
    /// Through `relay.rs`, because many connect at once.
    Crowd,
    /// Through `relay.rs`, because the server listens twice, and the client does not wait for that.
    ListensTwice,
}

#[derive(Debug)]
pub(super) struct Prints {
    pub(super) server: &'static [&'static str],
    pub(super) client: &'static [&'static str],
}

/// The direction of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Ironwarp connects to siw.
    Out,
    /// siw connects to Ironwarp.
    In,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Out => "to siw",
            Self::In => "from siw",
        })
    }
}

/// The guests: siw as it is, and with each of its constants changed.
pub(super) const VARIANTS: [&str; 4] = ["plain", "crc", "p2p", "v1"];
/// The test in crates/ironwarp/tests/siw that boots a variant.
pub(super) fn own_test(variant: &str) -> &'static str {
    match variant {
        "crc" => "a_siw_that_asks_for_crcs",
        "p2p" => "a_siw_that_asks_for_peer_to_peer_setup",
        "v1" => "a_siw_that_connects_with_mpa_revision_1",
        _ => "linux_siw_and_ironwarp_understand_each_other",
    }
}

/// Number of variants that CI boots: one per processor. The others differ only in the first frames.
pub(super) const CI_VARIANTS: usize = 2;

const BOTH: &[&str] = &["roce", "iwarp"];
const IWARP: &[&str] = &["iwarp"];

/// rping compares every byte that comes back. Its maximum size is 65535.
macro_rules! rping {
    ($size:literal) => {
        Program {
            name: concat!("rping -S ", $size),
            server: &["rping", "-s", "-a", "{addr}", "-p", "{port}", "-C", "100", "-V", "-S", $size],
            client: &["rping", "-c", "-a", "{addr}", "-p", "{port}", "-C", "100", "-V", "-S", $size],
            prints: Prints { server: &[], client: &[] },
            personas: BOTH,
            path: Path::Direct,
            may_say: LAST_EVENT,
        }
    };
}

/// An rping server destroys its event channel while a thread of it still reads events there, which ends the program if it
/// notices (`cm_thread`; later versions of rdma-core wait for the thread). The guest is slow, so that this happens.
const LAST_EVENT: &[&str] = &[
    "server DISCONNECT EVENT",
    "wait for RDMA_READ_ADV state 10", // the client has disconnected after its last ping
    "rdma_get_cm_event: Bad file descriptor",
];

/// perftest with the connection manager. It moves little data, because the guest's processors are emulated.
macro_rules! perftest {
    ($name:literal, [$($more:literal),*], $server:expr, $client:expr) => {
        Program {
            name: concat!($name, " -R"),
            server: &[$name, "-p", "{port}", "-R", "-F", "-n", "100" $(, $more)*],
            client: &[$name, "-p", "{port}", "-R", "-F", "-n", "100" $(, $more)*, "{addr}"],
            prints: Prints { server: $server, client: $client },
            personas: IWARP,
            path: Path::ListensTwice,
            may_say: LAST_SEND,
        }
    };
}

/// siw reports a Send as failed that has arrived, if the peer closes before siw's sender runs again
/// (`siw_qp_sq_proc_tx`, if `tx_suspend` is set meanwhile). perftest closes right after its last answer, and
/// the guest is slow.
const LAST_SEND: &[&str] = &["Bad wc status 2", "Failed to close connection between server and client"];

/// The beginning of result lines: size and iterations.
const BANDWIDTH: &[&str] = &[" 4096       100 "];
const LATENCY: &[&str] = &[" 2       100 "];

/// ucmatose makes many connections at once, and prints how they ended.
pub(super) const UCMATOSE: Program = Program {
    name: "ucmatose -c 20",
    server: &["ucmatose", "-b", "{addr}", "-p", "{port}", "-c", "20"],
    client: &["ucmatose", "-s", "{addr}", "-p", "{port}", "-c", "20"],
    prints: Prints {
        server: &["data transfers complete", "return status 0"],
        client: &["data transfers complete", "return status 0"],
    },
    personas: BOTH,
    path: Path::Crowd,
    may_say: &[],
};

pub(super) const PROGRAMS: &[Program] = &[
    rping!("64"),
    rping!("1024"),
    rping!("4096"),
    rping!("65535"),
    UCMATOSE,
    Program {
        name: "rdma_server, rdma_client",
        server: &["rdma_server", "-s", "{addr}", "-p", "{port}"],
        client: &["rdma_client", "-s", "{addr}", "-p", "{port}"],
        prints: Prints { server: &["rdma_server: end 0"], client: &["rdma_client: end 0"] },
        personas: BOTH,
        path: Path::Direct,
        may_say: &[],
    },
    perftest!("ib_write_bw", ["-s", "4096"], BANDWIDTH, BANDWIDTH),
    // Revision 1 does not transfer the number of outstanding Reads, and each end would use what its own
    // device supports.
    perftest!("ib_read_bw", ["-s", "4096", "-o", "16"], BANDWIDTH, BANDWIDTH),
    perftest!("ib_send_bw", ["-s", "4096"], BANDWIDTH, BANDWIDTH),
    perftest!("ib_write_lat", [], LATENCY, LATENCY),
    perftest!("ib_read_lat", ["-o", "16"], &[], LATENCY), // the end that is read from measures nothing
    perftest!("ib_send_lat", [], LATENCY, LATENCY),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_on_its_page() {
        let page = include_str!("../../../docs/interop.md");
        for Program { name, personas, .. } in PROGRAMS {
            let row = format!("| {name} | {} |", if personas.len() == 2 { "both" } else { personas[0] });
            assert!(page.contains(&row), "docs/interop.md has no row {row}");
        }
    }

    #[test]
    fn both_ends_run_the_same_program() {
        for Program { name, server, client, path, .. } in PROGRAMS {
            assert_eq!(*path == Path::ListensTwice, server[0].starts_with("ib_"), "{name}");
            // The options of both ends must agree, because perftest does not check that.
            let options = |words: &[&str]| words.iter().filter(|word| word.parse::<u32>().is_ok()).count();
            assert_eq!(options(server), options(client), "{name}");
        }
    }
}
