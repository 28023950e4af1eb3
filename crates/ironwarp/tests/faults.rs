//! A test with injected faults, as a Rust program would have it. docs/faults.md shows it.

use ironwarp::prelude::*;
use std::{error::Error, time::Duration};

#[test]
fn a_lost_connection_is_reported() -> Result<(), Box<dyn Error>> {
    let soon = Some(Duration::from_secs(10));
    let server = Adapter::new()?;
    let there = server.protection_domain().queue_pair(&server.completion_queue(16)?).create()?;
    let listener = server.listen("127.0.0.1:0".parse()?)?;

    let client = Adapter::open(Config::default().faults("cut@1".parse()?).seed(7))?;
    let cq = client.completion_queue(16)?;
    let here = client.protection_domain().queue_pair(&cq).create()?;
    here.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    listener.accept(soon)?.accept(&there, &AcceptOptions::new())?;
    here.wait_connected(soon)?;

    here.post_send(WorkRequest::send(1, &[]))?;
    let status = cq.wait(soon)?.status;
    assert!(matches!(status, Status::RetryExceeded | Status::Flushed), "{status}");
    Ok(())
}

/// The page shows the code above, without the line about this file.
#[test]
fn the_page_shows_this_test() {
    let (_, block) = include_str!("../../../docs/faults.md").split_once("```rust\n").expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    assert!(
        include_str!("faults.rs").contains(&format!("\n\n{block}\n///")),
        "docs/faults.md is out of date"
    );
}
