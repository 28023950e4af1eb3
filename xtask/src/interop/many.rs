//! Sets up and closes 1,000 connections in each direction: none may fail, and none may leak resources.
//!
//! Most are made by ucmatose, many at a time, which prints how they ended. The rest go to a server that keeps
//! running (`rping -P`): after some connections, others must not cost it any more descriptors or threads, nor
//! the guest any objects of siw.

use super::catalogue::{Direction, UCMATOSE};
use super::guest::{ADDRESS, HOST, PORT};
use super::testbed::{LOOPBACK, Testbed, fill};
use crate::shell::{Result, at};
use ironwarp_testkit::net::has_connection;
use ironwarp_testkit::process::Process;
use std::fs;
use std::path::PathBuf;

/// How often ucmatose connects, and how many connections at once fit into the memory of the guest.
const TIMES: usize = 48;
const AT_ONCE: usize = 20;
/// Number of connections to a server that keeps running. Its resources are counted after half of them, and
/// after all.
const TO_ONE_SERVER: usize = 1000 - TIMES * AT_ONCE;

pub(super) const NAME: &str = "1,000 connections";
pub(super) const PERSONA: &str = "iwarp";

const SERVER: &[&str] = &["rping", "-s", "-P", "-a", "{addr}", "-p", "{port}"];
const CLIENT: &[&str] = &["rping", "-c", "-a", "{addr}", "-p", "{port}", "-C", "1", "-V"];

/// Makes all connections in one direction.
pub(super) fn connections(testbed: &mut Testbed, direction: Direction) -> Result {
    let before = resources(testbed)?;
    for _ in 0..TIMES {
        testbed.run(&UCMATOSE, PERSONA, direction)?;
    }
    match direction {
        Direction::Out => siw_stays(testbed),
        Direction::In => ironwarp_stays(testbed),
    }?;
    match resources(testbed)? {
        after if after == before => Ok(()),
        after => Err(format!("siw leaked objects: `{before}` before, `{after}` after")),
    }
}

/// Ironwarp connects repeatedly to a server in the guest.
fn siw_stays(testbed: &mut Testbed) -> Result {
    testbed.guest.serve(&fill(SERVER, ADDRESS, PORT))?;
    let client = fill(CLIENT, LOOPBACK, testbed.guest.forwarded);
    let mut held = Vec::new();
    for _ in 0..2 {
        for _ in 0..TO_ONE_SERVER / 2 {
            testbed.start(PERSONA, &client, "client.log")?.finish()?;
        }
        held.push(resources(testbed)?);
    }
    testbed.guest.stop_serving()?;
    same("siw", &held)
}

/// siw connects repeatedly to a server on this host.
fn ironwarp_stays(testbed: &mut Testbed) -> Result {
    let port = testbed.next_port();
    let mut server = testbed.serve(PERSONA, &fill(SERVER, LOOPBACK, port), port)?;
    let client = fill(CLIENT, HOST, port).join(" ");
    let mut held = Vec::new();
    for _ in 0..2 {
        let number = TO_ONE_SERVER / 2;
        let line =
            format!("for i in $(seq {number}); do {client} || exit_code=1; done; (exit ${{exit_code:-0}})");
        let ended = testbed.guest.run(&line)?;
        if ended.code != 0 {
            return Err(format!("one of {number} connections failed: {ended}"));
        }
        held.push(settled(&mut server, port)?);
    }
    same("the server", &held)
}

/// The number of descriptors and threads of the server after its last connection is closed.
fn settled(server: &mut Process, port: u16) -> Result<String> {
    server.wait_until("its connections are gone", |server| !has_connection(server.id(), port))?;
    let count = |what: &str| {
        let folder = PathBuf::from("/proc").join(server.id().to_string()).join(what);
        Ok::<_, String>(fs::read_dir(&folder).map_err(at(&folder))?.count())
    };
    Ok(format!("{} descriptors, {} threads", count("fd")?, count("task")?))
}

/// The number of objects of each kind: `0: siw0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0`.
fn resources(testbed: &mut Testbed) -> Result<String> {
    let shown = testbed.guest.run("rdma resource show")?;
    match shown.code {
        0 if shown.output.contains("siw0: pd ") => Ok(shown.output),
        _ => Err(format!("rdma resource show {shown}")),
    }
}

fn same(who: &str, held: &[String]) -> Result {
    match held {
        [some, all] if some == all => Ok(()),
        [some, all] => Err(format!("{who} leaks: `{some}` after half of the connections, `{all}` after all")),
        _ => Err("no resources were counted".into()),
    }
}
