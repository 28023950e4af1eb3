//! Programs that need more than a server and a client.

use super::hosts::{End, Trial, expect};
use crate::shell::{Result, at, command, output};
use ironwarp_testkit::net::listens;
use ironwarp_testkit::pattern::pattern;
use ironwarp_testkit::process::Process;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Creates a file whose bytes have a long period.
fn write_file(path: &Path, len: usize) -> Result<Vec<u8>> {
    let bytes = pattern(1, len);
    fs::write(path, &bytes).map_err(at(path))?;
    Ok(bytes)
}

fn same(path: &Path, bytes: &[u8]) -> Result {
    let found = fs::read(path).map_err(at(path))?;
    if found == bytes { Ok(()) } else { Err(format!("{}: data differs from what was sent", path.display())) }
}

/// Runs until it is killed: it has opened the device, and waits for events.
pub(super) fn asyncwatch(trial: &Trial) -> Result {
    let mut watch = trial.start(End::Server, &["ibv_asyncwatch", "-d", "ironwarp0"])?;
    watch.wait_until("it waits for events", |watch| watch.output().contains("async event FD"))
}

pub(super) fn rcopy(trial: &Trial) -> Result {
    let (from, to) = (trial.folder.join("from"), trial.folder.join("to"));
    let bytes = write_file(&from, 3_000_001)?;
    let _server = trial.serve(&["rcopy", "-p", "{port}"])?;
    let target = format!("{{addr}}:{}", to.display());
    let mut client = trial.start(End::Client, &["rcopy", "{dir}/from", &target, "-p", "{port}"])?;
    client.finish()?;
    same(&to, &bytes)
}

/// Runs each kind of transfer, with verified data where fio supports it.
pub(super) fn fio(trial: &Trial) -> Result {
    for verb in ["write", "read", "send"] {
        let job = |kind: &str, more: &str| {
            format!("[global]\nioengine=rdma\nport={}\nbs=1m\nsize=32m\n[{kind}]\n{more}", trial.port)
        };
        let server_job = job("receiver", "rw=read\niodepth=16\n");
        let client_job = job(
            "sender",
            &format!("rw=write\niodepth=8\nhostname={}\nverb={verb}\n", trial.server_address()),
        );
        let (server_file, client_file) = (trial.folder.join("server.fio"), trial.folder.join("client.fio"));
        fs::write(&server_file, server_job).map_err(at(&server_file))?;
        fs::write(&client_file, client_job).map_err(at(&client_file))?;
        let mut server = trial.serve(&["fio", "{dir}/server.fio"])?;
        let mut client = trial.start(End::Client, &["fio", "{dir}/client.fio"])?;
        let printed = client.finish()?;
        expect(&client, &printed, &["err= 0", "io=32.0MiB"])?;
        server.finish()?;
    }
    Ok(())
}

// --- UCX ---

/// Settings that make UCX use our device only.
const UCX: [&str; 2] = ["UCX_TLS=rc_verbs,ud_verbs,self", "UCX_NET_DEVICES=ironwarp0:1"];

/// `env` with these variables, followed by the words.
fn with_env<'w>(variables: &[&'w str], words: &[&'w str]) -> Vec<&'w str> {
    [&["env"], variables, words].concat()
}

pub(super) fn ucx_perftest(trial: &Trial) -> Result {
    // If built with MPI, it takes an input that is not a terminal for mpirun's.
    let help = command("ucx_perftest", &["-h"]).output().map_err(|error| format!("ucx_perftest: {error}"))?;
    let with_mpi = String::from_utf8_lossy(&help.stdout).contains("MPI mode");
    let alone: &[&str] = if with_mpi { &["-P", "0"] } else { &[] };
    for test in ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_get", "ucp_fadd", "ucp_am_lat"] {
        let words = ["ucx_perftest", "-p", "{port}", "-t", test, "-n", "1000", "-w", "100"];
        let words = [&words[..], alone].concat();
        let mut server = trial.serve(&with_env(&UCX, &words))?;
        let words = [&words[..], &["{oob}"]].concat();
        let mut client = trial.start(End::Client, &with_env(&UCX, &words))?;
        let printed = client.finish()?;
        expect(&client, &printed, &["Final:"])?;
        server.finish()?;
    }
    Ok(())
}

/// UCX's own example over rdma_cm, which checks the data it receives.
pub(super) fn ucp_client_server(trial: &Trial) -> Result {
    let program = trial.hosts.environment().compiled("ucp_client_server", |program| {
        let source = "/usr/share/doc/libucx-dev/examples";
        let program = program.to_string_lossy();
        let file = format!("{source}/ucp_client_server.c");
        let words = ["-o", &program, "-I", source, &file, "-lucp", "-lucs", "-luct"];
        output(&mut command("cc", &words)).map(drop)
    })?;
    let program = program.to_string_lossy();
    let cm = ["UCX_SOCKADDR_TLS_PRIORITY=rdmacm"];
    let variables = [&UCX[..], &cm].concat();
    let _server = trial.serve(&with_env(&variables, &[&program, "-p", "{port}"]))?;
    let words = with_env(&variables, &[&program, "-p", "{port}", "-a", "{addr}"]);
    let mut client = trial.start(End::Client, &words)?;
    client.finish().map(drop)
}

// --- libfabric ---

/// The client has moved and compared each size that it prints.
fn fi_pingpong(trial: &Trial, kind: &[&str], sizes: &[&str]) -> Result {
    let common = [&["fi_pingpong"], kind, &["-c", "-I", "100"]].concat();
    let mut server = trial.serve(&[&common[..], &["-B", "{port}"]].concat())?;
    let mut client = trial.start(End::Client, &[&common[..], &["-P", "{port}", "{addr}"]].concat())?;
    let printed = client.finish()?;
    expect(&client, &printed, sizes)?;
    server.finish().map(drop)
}

pub(super) fn fi_pingpong_msg(trial: &Trial) -> Result {
    fi_pingpong(trial, &["-p", "verbs", "-e", "msg"], &["64", "1m"])
}

pub(super) fn fi_pingpong_rdm(trial: &Trial) -> Result {
    fi_pingpong(trial, &["-p", "verbs;ofi_rxm", "-e", "rdm"], &["64", "1m"])
}

pub(super) fn fi_pingpong_dgram(trial: &Trial) -> Result {
    fi_pingpong(trial, &["-p", "verbs", "-e", "dgram", "-S", "1024"], &["1k"])
}

// --- MPI ---

/// Runs a program that sends every size to every rank and checks every byte.
const MPI: &str = include_str!("exchange.c");

fn mpi(trial: &Trial, how: &[&str]) -> Result {
    let program = trial.hosts.environment().compiled("exchange", |program| {
        let source = trial.folder.join("exchange.c");
        fs::write(&source, MPI).map_err(at(&source))?;
        let words = ["-o", &program.to_string_lossy(), &source.to_string_lossy()];
        output(&mut command("mpicc", &words)).map(drop)
    })?;
    let program = program.to_string_lossy();
    // A folder of its own: two that begin at once may both create the one in /tmp, and one of them fails.
    let folder = format!("TMPDIR={}", trial.folder.display());
    let common = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3"];
    let words = [&common[..], how, &[&program]].concat();
    let mut run = trial.start(End::Server, &with_env(&[&folder], &words))?;
    let printed = run.finish()?;
    expect(&run, &printed, &["exchange: all bytes as sent"])
}

pub(super) fn mpi_ucx(trial: &Trial) -> Result {
    mpi(trial, &["--mca", "pml", "ucx", "--mca", "btl", "^openib,vader,tcp", "-x", UCX[0], "-x", UCX[1]])
}

pub(super) fn mpi_ofi(trial: &Trial) -> Result {
    mpi(
        trial,
        &["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"],
    )
}

// --- QEMU ---

pub(super) fn qemu(trial: &Trial) -> Result {
    migrate(trial, false)
}

pub(super) fn qemu_pinned(trial: &Trial) -> Result {
    migrate(trial, true)
}

/// Migrates a machine of 128 MiB while it is paused in its firmware; the other one must then run.
fn migrate(trial: &Trial, pinned: bool) -> Result {
    let machine = |end: End, more: &[&str]| {
        let name = if end == End::Server { "to" } else { "from" };
        let monitor = format!("unix:{}/{name}.sock,server,nowait", trial.folder.display());
        let words = [
            &[
                "qemu-system-x86_64",
                "-machine",
                "pc,accel=tcg",
                "-m",
                "128",
                "-display",
                "none",
                "-nodefaults",
            ],
            &["-qmp", &monitor][..],
            more,
        ]
        .concat();
        trial.start(end, &words)
    };
    let mut to = machine(End::Server, &["-incoming", "rdma:{addr}:{port}"])?;
    let port = trial.port;
    to.wait_until("it listens", |to| listens(to.id(), port))?;
    let mut from = machine(End::Client, &[])?;
    let mut source = super::qmp::Monitor::open(&mut from, &trial.folder.join("from.sock"))?;
    if pinned {
        source.ask(r#"{"execute":"migrate-set-capabilities","arguments":{"capabilities":[{"capability":"rdma-pin-all","state":true}]}}"#)?;
    }
    let uri = format!("rdma:{}:{port}", trial.server_address());
    source.ask(&format!(r#"{{"execute":"migrate","arguments":{{"uri":"{uri}"}}}}"#))?;
    let outcome = source.ask_until(r#"{"execute":"query-migrate"}"#, |answer| {
        ["\"completed\"", "\"failed\"", "\"cancelled\""].iter().any(|end| answer.contains(end))
    })?;
    if !outcome.contains("\"completed\"") {
        return Err(from.error(&format!("the migration did not succeed: {outcome}")));
    }
    let mut target = super::qmp::Monitor::open(&mut to, &trial.folder.join("to.sock"))?;
    target.ask_until(r#"{"execute":"query-status"}"#, |answer| answer.contains("\"running\"")).map(drop)
}

// --- iSER ---

/// Runs a target on a file. An initiator writes and reads through it, and the file must contain what was
/// written.
pub(super) fn iser(trial: &Trial) -> Result {
    let disk = trial.folder.join("disk");
    let bytes = write_file(&disk, 4 << 20)?;
    let control = trial.port.to_string();
    // Both transports use the same port, which only one can have.
    let words = ["tgtd", "-f", "-C", &control, "--iser", "port={port}", "--iscsi", "portal=127.0.0.1:1"];
    let words = trial.fill(End::Server, &words)?;
    let log = trial.folder.join("server.log");
    let mut target = Process::start(trial.command_as(&[], End::Server, &words), "tgtd", &log)?;
    let port = trial.port;
    target.wait_until("it listens", |target| listens(target.id(), port))?;
    let admin = |words: &[&str]| {
        let mut command = Command::new("tgtadm");
        command.args(["-C", &control]).args(words);
        output(&mut command).map(drop)
    };
    let name = "iqn.2026-01.example:disk";
    let backing = disk.to_string_lossy();
    admin(&["--lld", "iser", "--op", "new", "--mode", "target", "--tid", "1", "-T", name])?;
    admin(&[
        "--lld",
        "iser",
        "--op",
        "new",
        "--mode",
        "logicalunit",
        "--tid",
        "1",
        "--lun",
        "1",
        "-b",
        &backing,
    ])?;
    // For iSER it needs both the address and the name of initiators.
    let initiators = ["iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq", "iqn.2008-11.org.linux-kvm"];
    let known = [("-I", "ALL"), ("-Q", initiators[0]), ("-Q", initiators[1])];
    for (how, whom) in known {
        admin(&["--lld", "iser", "--op", "bind", "--mode", "target", "--tid", "1", how, whom])?;
    }
    let url = format!("iser://{}:{}/{name}/1", trial.server_address(), trial.port);
    trial.start(End::Client, &["iscsi-inq", &url])?.finish()?;
    // Compare reads with the file, and look for writes in the file.
    let script = ["-c", "write -P 0xa5 1M 128k", "-c", "read -P 0xa5 1M 128k", "-c", "read -v 0 512"];
    let words = [&["qemu-io", "-f", "raw"], &script[..], &[url.as_str()]].concat();
    let mut client = trial.start(End::Client, &words)?;
    let printed = client.finish()?;
    expect(&client, &printed, &["wrote 131072/131072", "read 131072/131072", "read 512/512"])?;
    let mut wanted = bytes;
    wanted[1 << 20..][..128 << 10].fill(0xa5);
    same(&disk, &wanted)
}
