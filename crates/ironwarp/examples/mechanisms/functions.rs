//! Functions of an adapter, and connections that move from one to another.

use crate::ends::{End, REMOTE, Result, TIMEOUT, check, connect};
use ironwarp::Config;
use ironwarp::function::{Moving, Quotas};
use ironwarp::memory::Buffer;
use ironwarp::queue::WorkRequest;

/// Requirements X1 and X2: functions have objects and quotas of their own, and a connection moves between them.
pub(crate) fn move_connection() -> Result {
    let peer = End::new(Config::default(), |builder| builder)?;
    let adapter = ironwarp::Adapter::new()?;
    let one = adapter.function(Quotas::default().queue_pairs(1))?;
    let other = adapter.function(Quotas::default())?;
    let (cq, domain) = (one.completion_queue(16)?, one.protection_domain());
    let qp = domain.queue_pair(&cq).create()?;
    let refused = domain.queue_pair(&cq).create().err().ok_or("a second queue pair")?;
    println!("{refused}");

    let region = domain.register(Buffer::new(64)?, REMOTE)?;
    connect(&peer.qp, &qp, &one)?;
    let (number, addr) = (qp.id(), region.remote_addr(0)?);
    let there = other.completion_queue(16)?;
    let moved = Moving::new(qp, [region]).move_to(&other.protection_domain(), [&there, &there], TIMEOUT)?;
    check((moved.qp.id(), moved.regions[0].tag()) == (number, addr.tag), "number and tag stay")?;
    println!(
        "the connection and its region move to function {}, and keep number and tag",
        other.function_number()
    );

    moved.qp.post_receive(7, &[])?;
    peer.qp.post_send(WorkRequest::write_inline(1, b"still here", addr).unsignaled())?;
    peer.qp.post_send(WorkRequest::send(2, &[]).unsignaled())?;
    check(there.wait(TIMEOUT)?.success()?.wr_id == 7, "the message arrives at the other function")?;
    let bytes = moved.regions[0].to_vec()?;
    println!("the peer, which has noticed nothing, writes: {}", String::from_utf8_lossy(&bytes[..10]));
    Ok(())
}
