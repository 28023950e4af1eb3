//! 1,000 connections set up and torn down in each direction: none lost, none leaked. Before this: the programs of the catalogue,
//! on the same guest.
//!
//! Most are made by ucmatose, many at a time, which says how they ended. The rest are those of a server that stays (`rping -P`):
//! once it has served some, others must cost it nothing that lasts, here descriptors and threads, in the guest siw's objects.

use super::catalogue::{Direction, UCMATOSE};
use super::guest::{ADDRESS, HOST, PORT};
use super::stage::{LOOPBACK, Stage, fill};
use crate::inside::serves;
use crate::process::Process;
use crate::shell::{Result, at};
use std::fs;
use std::path::PathBuf;

/// So many times ucmatose makes as many connections at once as the memory of the guest is good for.
const TIMES: usize = 48;
const AT_ONCE: usize = 20;
/// So many go to a server that stays, half of them before it is looked at.
const TO_ONE_SERVER: usize = 1000 - TIMES * AT_ONCE;

pub(super) const NAME: &str = "1,000 connections";
pub(super) const PERSONA: &str = "iwarp";

const SERVER: &[&str] = &["rping", "-s", "-P", "-a", "{addr}", "-p", "{port}"];
const CLIENT: &[&str] = &["rping", "-c", "-a", "{addr}", "-p", "{port}", "-C", "1", "-V"];

/// All of them, in one direction.
pub(super) fn connections(stage: &mut Stage, direction: Direction) -> Result {
    let before = resources(stage)?;
    for _ in 0..TIMES {
        stage.play(&UCMATOSE, PERSONA, direction)?;
    }
    match direction {
        Direction::Out => siw_stays(stage),
        Direction::In => ironwarp_stays(stage),
    }?;
    match resources(stage)? {
        after if after == before => Ok(()),
        after => Err(format!("siw had `{before}` before, and has `{after}` after")),
    }
}

/// Ironwarp connects again and again to a server in the guest.
fn siw_stays(stage: &mut Stage) -> Result {
    stage.guest.serve(&fill(SERVER, ADDRESS, PORT))?;
    let client = fill(CLIENT, LOOPBACK, stage.guest.forwarded);
    let mut held = Vec::new();
    for _ in 0..2 {
        for _ in 0..TO_ONE_SERVER / 2 {
            stage.start(PERSONA, &client, "client.log")?.finish()?;
        }
        held.push(resources(stage)?);
    }
    stage.guest.stop_serving()?;
    same("siw", &held)
}

/// siw connects again and again to a server on this host.
fn ironwarp_stays(stage: &mut Stage) -> Result {
    let port = stage.next_port();
    let mut server = stage.serve(PERSONA, &fill(SERVER, LOOPBACK, port), port)?;
    let client = fill(CLIENT, HOST, port).join(" ");
    let mut held = Vec::new();
    for _ in 0..2 {
        let number = TO_ONE_SERVER / 2;
        let line =
            format!("for i in $(seq {number}); do {client} || exit_code=1; done; (exit ${{exit_code:-0}})");
        let ended = stage.guest.run(&line)?;
        if ended.code != 0 {
            return Err(format!("one of {number} connections was lost: {ended}"));
        }
        held.push(settled(&mut server, port)?);
    }
    same("the server", &held)
}

/// What the server holds, once its last connection is gone: descriptors and threads.
fn settled(server: &mut Process, port: u16) -> Result<String> {
    server.wait_until("its connections are gone", |server| !serves(server.id(), port))?;
    let count = |what: &str| {
        let folder = PathBuf::from("/proc").join(server.id().to_string()).join(what);
        Ok::<_, String>(fs::read_dir(&folder).map_err(at(&folder))?.count())
    };
    Ok(format!("{} descriptors, {} threads", count("fd")?, count("task")?))
}

/// How many objects of each kind there are: `0: siw0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0`.
fn resources(stage: &mut Stage) -> Result<String> {
    let shown = stage.guest.run("rdma resource show")?;
    match shown.code {
        0 if shown.output.contains("siw0: pd ") => Ok(shown.output),
        _ => Err(format!("rdma resource show {shown}")),
    }
}

fn same(who: &str, held: &[String]) -> Result {
    match held {
        [some, all] if some == all => Ok(()),
        [some, all] => Err(format!("after half of its connections {who} holds `{some}`, after all `{all}`")),
        _ => Err("nothing was looked at".into()),
    }
}
