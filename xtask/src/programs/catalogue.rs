//! The programs, how they are run, and what they must print. Programs that can check their data do so.

use super::program::Program;
use super::program::Shape::{Alone, Pair, Special};
use super::special;

/// A server and a client of the same program. The client's last argument is the server's address.
macro_rules! same {
    ($name:literal, [$($word:literal),*], $expect:expr) => {
        Program::new(
            $name,
            Pair { server: &[$($word),*], client: &[$($word,)* "{oob}"] },
            $expect,
        )
    };
}

/// An rsockets program: a few transfers of an odd size, with an option.
macro_rules! rsocket {
    ($name:literal, $program:literal, $option:literal) => {
        Program::new(
            $name,
            Pair {
                server: &[
                    $program, "-b", "{addr}", "-p", "{port}", "-S", "65537", "-C", "5", "-I", "5", "-T",
                    $option,
                ],
                client: &[
                    $program, "-s", "{addr}", "-p", "{port}", "-S", "65537", "-C", "5", "-I", "5", "-T",
                    $option,
                ],
            },
            &["custom"],
        )
    };
}

/// A server and a client of perftest with the connection manager, which uses the addresses of the fabric.
macro_rules! same_cm {
    ($name:literal, [$($word:literal),*]) => {
        Program::new(
            $name,
            Pair { server: &[$($word),*, "-R"], client: &[$($word,)* "-R", "{addr}"] },
            &[],
        )
    };
}

/// Runs with an adversary, in [`NOT_RUN`].
pub(super) const ADVERSARY: &str = "adversary";

/// Runs under `ironwarp run --check`, in [`NOT_RUN`].
pub(super) const CHECK: &str = "check";

/// Programs that are not run in a release of Debian, with an adversary or with checks, and why.
pub(super) const NOT_RUN: &[(&str, &[&str], &str)] = &[
    (
        "sid",
        &["ucx_info -d", "ucx_perftest", "ucp_client_server", "Open MPI, pml ucx"],
        "its UCX (1.23.0~rc1-1) is built without the InfiniBand transports",
    ),
    (
        ADVERSARY,
        &["ibv_ud_pingpong", "ib_send_bw -c UD", "fi_pingpong dgram"],
        "it waits for ever for a datagram that was lost (docs/adversary.md)",
    ),
    (CHECK, &["tgtd iSER, libiscsi"], "libiscsi may crash while the report is written (docs/check.md)"),
];

/// cmtime has other options since rdma-core 59: the first argument distinguishes the ends there, and the
/// second before.
const CMTIME: &str = "if cmtime -h | grep -q controller
then exec cmtime $1 -b {addr} -C {addr} -p {port} -c 50
else exec cmtime $2 -p {port} -c 50
fi";

pub(super) const PROGRAMS: &[Program] = &[
    // --- ibverbs-utils ---
    Program::new("ibv_devices", Alone(&["ibv_devices"]), &["ironwarp0"]),
    Program::new(
        "ibv_devinfo -v",
        Alone(&["ibv_devinfo", "-v"]),
        &["PORT_ACTIVE", "link_layer:\t\tEthernet"],
    ),
    Program::new("ibv_asyncwatch", Special(special::asyncwatch), &[]),
    same!("ibv_rc_pingpong", ["ibv_rc_pingpong", "-p", "{port}", "-g", "{gid}", "-c"], &["1000 iters"])
        .representative(),
    same!(
        "ibv_rc_pingpong -e",
        ["ibv_rc_pingpong", "-p", "{port}", "-g", "{gid}", "-c", "-e"],
        &["1000 iters"]
    ),
    same!(
        "ibv_rc_pingpong -N",
        ["ibv_rc_pingpong", "-p", "{port}", "-g", "{gid}", "-c", "-N"],
        &["1000 iters"]
    ),
    same!(
        "ibv_rc_pingpong -t",
        ["ibv_rc_pingpong", "-p", "{port}", "-g", "{gid}", "-c", "-t"],
        &["1000 iters"]
    ),
    // Without -g, the peer is addressed by its LID.
    same!("ibv_rc_pingpong by LID", ["ibv_rc_pingpong", "-p", "{port}", "-c"], &["1000 iters"]),
    same!("ibv_uc_pingpong", ["ibv_uc_pingpong", "-p", "{port}", "-g", "{gid}", "-c"], &["1000 iters"]),
    same!("ibv_ud_pingpong", ["ibv_ud_pingpong", "-p", "{port}", "-g", "{gid}", "-c"], &["1000 iters"]),
    same!("ibv_srq_pingpong", ["ibv_srq_pingpong", "-p", "{port}", "-g", "{gid}", "-c"], &["1000 iters"])
        .representative(),
    same!("ibv_xsrq_pingpong", ["ibv_xsrq_pingpong", "-p", "{port}", "-g", "{gid}"], &[]),
    // --- perftest ---
    same!("ib_write_bw", ["ib_write_bw", "-p", "{port}", "-x", "{gid}", "-n", "1000", "-F"], &["65536"])
        .representative(),
    same!("ib_write_lat", ["ib_write_lat", "-p", "{port}", "-x", "{gid}", "-F"], &["t_typical"]),
    same!("ib_read_bw", ["ib_read_bw", "-p", "{port}", "-x", "{gid}", "-n", "1000", "-F"], &["65536"])
        .representative(),
    same!("ib_read_lat", ["ib_read_lat", "-p", "{port}", "-x", "{gid}", "-F"], &["t_typical"]),
    same!("ib_send_bw", ["ib_send_bw", "-p", "{port}", "-x", "{gid}", "-n", "1000", "-F"], &["65536"])
        .roce_only(),
    same!("ib_send_lat", ["ib_send_lat", "-p", "{port}", "-x", "{gid}", "-F"], &["t_typical"])
        .representative(),
    same!("ib_atomic_bw", ["ib_atomic_bw", "-p", "{port}", "-x", "{gid}", "-n", "1000", "-F"], &["8 "]),
    same!("ib_atomic_lat", ["ib_atomic_lat", "-p", "{port}", "-x", "{gid}", "-F"], &["t_typical"]),
    same!(
        "ib_write_bw -q 8",
        ["ib_write_bw", "-p", "{port}", "-x", "{gid}", "-q", "8", "-n", "500", "-F"],
        &["65536"]
    ),
    same!(
        "ib_write_bw -a",
        ["ib_write_bw", "-p", "{port}", "-x", "{gid}", "-a", "-n", "100", "-F"],
        &["8388608"]
    ),
    same!("ib_write_bw -D 1", ["ib_write_bw", "-p", "{port}", "-x", "{gid}", "-D", "1", "-F"], &["65536"]),
    same!(
        "ib_send_bw -b",
        ["ib_send_bw", "-p", "{port}", "-x", "{gid}", "-b", "-n", "1000", "-F"],
        &["65536"]
    )
    .roce_only(),
    same!(
        "ib_send_bw -e",
        ["ib_send_bw", "-p", "{port}", "-x", "{gid}", "-e", "-n", "1000", "-F"],
        &["65536"]
    )
    .roce_only(),
    same!(
        "ib_send_bw -c UD",
        ["ib_send_bw", "-p", "{port}", "-x", "{gid}", "-c", "UD", "-n", "1000", "-F"],
        &[]
    )
    .roce_only(),
    same!(
        "ib_send_bw -c XRC",
        ["ib_send_bw", "-p", "{port}", "-x", "{gid}", "-c", "XRC", "-n", "1000", "-F"],
        &[]
    )
    .roce_only(),
    same!(
        "ib_send_bw --use-srq",
        ["ib_send_bw", "-p", "{port}", "-x", "{gid}", "--use-srq", "-n", "1000", "-F"],
        &["65536"]
    )
    .roce_only(),
    same_cm!("ib_write_bw -R", ["ib_write_bw", "-p", "{port}", "-n", "1000", "-F"]),
    same_cm!("ib_write_lat -R", ["ib_write_lat", "-p", "{port}", "-F"]),
    same_cm!("ib_read_bw -R", ["ib_read_bw", "-p", "{port}", "-n", "1000", "-F"]),
    same_cm!("ib_read_lat -R", ["ib_read_lat", "-p", "{port}", "-F"]),
    same_cm!("ib_send_bw -R", ["ib_send_bw", "-p", "{port}", "-n", "1000", "-F"]).roce_only(),
    same_cm!("ib_send_lat -R", ["ib_send_lat", "-p", "{port}", "-F"]),
    same_cm!("ib_atomic_bw -R", ["ib_atomic_bw", "-p", "{port}", "-n", "1000", "-F"]),
    same_cm!("ib_atomic_lat -R", ["ib_atomic_lat", "-p", "{port}", "-F"]),
    // --- rdmacm-utils ---
    Program::new(
        "rping",
        Pair {
            server: &["rping", "-s", "-a", "{addr}", "-p", "{port}", "-C", "100", "-V", "-S", "4096"],
            client: &["rping", "-c", "-a", "{addr}", "-p", "{port}", "-C", "100", "-V", "-S", "4096"],
        },
        &[],
    )
    .representative(),
    Program::new(
        "rping -q",
        Pair {
            server: &["rping", "-s", "-a", "{addr}", "-p", "{port}", "-C", "100", "-V", "-q"],
            client: &["rping", "-c", "-a", "{addr}", "-p", "{port}", "-C", "100", "-V", "-q"],
        },
        &[],
    )
    .roce_only(),
    Program::new(
        "ucmatose",
        Pair {
            server: &["ucmatose", "-b", "{addr}", "-p", "{port}"],
            client: &["ucmatose", "-s", "{addr}", "-p", "{port}"],
        },
        &["test complete"],
    )
    .representative(),
    Program::new(
        "ucmatose -c 20",
        Pair {
            server: &["ucmatose", "-b", "{addr}", "-p", "{port}", "-c", "20"],
            client: &["ucmatose", "-s", "{addr}", "-p", "{port}", "-c", "20"],
        },
        &["test complete"],
    )
    .representative(),
    Program::new(
        "udaddy",
        Pair { server: &["udaddy", "-b", "{addr}"], client: &["udaddy", "-s", "{addr}"] },
        &["return status 0"],
    )
    .at(7174),
    Program::new(
        "rdma_server, rdma_client",
        Pair {
            server: &["rdma_server", "-s", "{addr}", "-p", "{port}"],
            client: &["rdma_client", "-s", "{addr}", "-p", "{port}"],
        },
        &["rdma_client: end 0"],
    )
    .representative(),
    Program::new(
        "rdma_xserver, rdma_xclient",
        Pair {
            server: &["rdma_xserver", "-p", "{port}", "-c", "r"],
            client: &["rdma_xclient", "-s", "{addr}", "-p", "{port}", "-c", "r"],
        },
        &["rdma_xclient: end 0"],
    ),
    Program::new(
        "rdma_xserver, rdma_xclient XRC",
        Pair {
            server: &["rdma_xserver", "-p", "{port}", "-c", "x"],
            client: &["rdma_xclient", "-s", "{addr}", "-p", "{port}", "-c", "x"],
        },
        &["rdma_xclient: end 0"],
    ),
    Program::new(
        "cmtime",
        Pair {
            server: &["sh", "-c", CMTIME, "sh", "-L", "-b {addr}"],
            client: &["sh", "-c", CMTIME, "sh", "", "-s {addr}"],
        },
        &["disconnect"],
    )
    .server_stays(),
    rsocket!("rstream -T v", "rstream", "v").representative(),
    rsocket!("rstream -T b", "rstream", "b"),
    rsocket!("rstream -T n", "rstream", "n"),
    rsocket!("rstream -T a", "rstream", "a"),
    rsocket!("rstream -T r", "rstream", "r"),
    rsocket!("riostream", "riostream", "v"),
    Program::new("rcopy", Special(special::rcopy), &[]),
    // --- others ---
    Program::new(
        "qperf rc_",
        Pair {
            server: &["qperf", "-lp", "{port}"],
            client: &[
                "qperf",
                "-lp",
                "{port}",
                "{addr}",
                "-cm",
                "1",
                "-t",
                "1",
                "rc_bw",
                "rc_lat",
                "rc_rdma_write_bw",
                "rc_rdma_read_lat",
            ],
        },
        &["rc_rdma_read_lat"],
    )
    .server_stays(),
    Program::new("fio rdma", Special(special::fio), &[]),
    Program::new("ucx_info -d", Alone(&["ucx_info", "-d"]), &["rc_verbs", "ud_verbs"]).roce_only(),
    Program::new("ucx_perftest", Special(special::ucx_perftest), &[]).roce_only(),
    Program::new("ucp_client_server", Special(special::ucp_client_server), &[]).roce_only(),
    Program::new("fi_info -p verbs", Alone(&["fi_info", "-p", "verbs"]), &["provider: verbs"]),
    Program::new("fi_pingpong msg", Special(special::fi_pingpong_msg), &[]),
    Program::new("fi_pingpong rdm", Special(special::fi_pingpong_rdm), &[]),
    Program::new("fi_pingpong dgram", Special(special::fi_pingpong_dgram), &[]).roce_only(),
    Program::new("Open MPI, pml ucx", Special(special::mpi_ucx), &[]).roce_only(),
    Program::new("Open MPI, mtl ofi", Special(special::mpi_ofi), &[]),
    Program::new("QEMU migration", Special(special::qemu), &[]),
    Program::new("QEMU migration, pinned", Special(special::qemu_pinned), &[]),
    Program::new("tgtd iSER, libiscsi", Special(special::iser), &[]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_run_in_a_release_is_a_program() {
        let known = |name: &&&str| PROGRAMS.iter().any(|program| program.name == **name);
        let unknown: Vec<_> = NOT_RUN.iter().flat_map(|(_, names, _)| *names).filter(|n| !known(n)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn every_program_is_on_its_page() {
        let page = include_str!("../../../docs/programs.md");
        for program in PROGRAMS {
            let personas = if program.serves("iwarp") { "both" } else { "roce" };
            let places = if program.representative { "one host, two (IPv4, IPv6)" } else { "one host" };
            let row = format!("| {} | {personas} | {places} |", program.name);
            assert!(page.contains(&row), "docs/programs.md has no row {row}");
        }
    }
}
