//! One of our processes that is killed in the middle of a transfer.

use crate::end::End;
use crate::shape::Shape;
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_testkit::child::{self, Partner};
use std::net::SocketAddr;

const WRITING: &str = "the first Write is done";

/// Starts a process that writes to siw forever, and kills it once it has begun and `siw_is_ready` returns.
pub(crate) fn run_and_kill(to: SocketAddr, siw_is_ready: impl FnOnce()) {
    let mut command = child::command("killed_peer::writes_until_it_is_killed", &to.to_string());
    command.arg("--ignored");
    let mut writer = Partner::start(command);
    writer.wait_for(WRITING);
    siw_is_ready();
    writer.kill();
}

/// Run by [`run_and_kill`], which gives it siw's address as its role.
#[test]
#[ignore = "a process for another test"]
fn writes_until_it_is_killed() {
    let Some(to) = child::role() else { return };
    // Long Writes, and CRCs: see `operations::SHORT`.
    let adapter = Adapter::open(Config::default().crc(false)).unwrap();
    let shape = Shape { half: 1 << 20, ..Shape::default() };
    let mut end = End::new(&adapter, true, Completes::WhenSent, shape);
    end.connect(to.parse().unwrap()).unwrap();
    end.advert();
    for count in 0.. {
        let source = end.source.slice(..shape.half).unwrap();
        end.posted(WorkRequest::write(1, &[source], end.to(0))).unwrap();
        if count == 0 {
            println!("{WRITING}");
        }
    }
}
