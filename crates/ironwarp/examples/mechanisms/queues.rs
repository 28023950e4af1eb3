//! Queues that serve more than one connection: for control operations, and for sending.

use crate::ends::{End, LOCAL, REMOTE, Result, acknowledged, check, connect, next, whole};
use ironwarp::Config;
use ironwarp::completion::Opcode;
use ironwarp::memory::Buffer;
use ironwarp::queue::WorkRequest;

/// Requirement X6: registrations wait in a queue of their own. Requests may use the memory at once: a request that is
/// ahead of its registration waits for it.
pub(crate) fn control() -> Result {
    const COUNT: usize = 8;
    const LEN: usize = 1 << 20;
    let (client, server) = crate::ends::pair()?;
    let target = server.domain.register(Buffer::new(COUNT * LEN)?, REMOTE)?;
    let done = client.adapter.completion_queue(64)?;
    let control = client.adapter.control_queue(&done, 64)?;
    let mut regions = Vec::new();
    for number in 0..COUNT {
        let bytes = vec![u8::try_from(number)?; LEN];
        let region =
            control.register_prefaulted(number as u64, &client.domain, Buffer::copy_of(&bytes)?, LOCAL)?;
        let addr = target.remote_addr(number * LEN)?;
        client.qp.post_send(WorkRequest::write(number as u64, &[whole(&region)?], addr))?;
        regions.push(region);
    }
    println!("{COUNT} registrations are queued, and a Write from each region is posted at once");
    for number in 0..COUNT {
        let registered = next(&done)?.success()?;
        check((registered.wr_id, registered.opcode) == (number as u64, Opcode::Register), "in order")?;
    }
    println!("the registrations complete in order, at the completion queue of the control queue");
    for _ in 0..COUNT {
        client.done()?;
    }
    let expected = (0..COUNT).flat_map(|number| std::iter::repeat_n(number, LEN));
    check(target.to_vec()?.into_iter().map(usize::from).eq(expected), "every byte is right")?;
    check(!regions.iter().any(ironwarp::memory::MemoryRegion::is_pending), "no registration is pending")?;
    println!("each Write waited for its own registration if it had to: every byte is right");

    let made = control.create_queue_pair(100, client.domain.queue_pair(&client.cq))?;
    check(next(&done)?.success()?.opcode == Opcode::CreateQueuePair, "created")?;
    control.destroy_queue_pair(101, made.take().ok_or("no queue pair")??)?;
    check(next(&done)?.success()?.opcode == Opcode::DestroyQueuePair, "destroyed")?;
    println!("queue pairs are created and destroyed in the same queue");
    Ok(())
}

/// Requirement X7: one send queue feeds several connections, and completes in the order of transmission.
pub(crate) fn shared_send() -> Result {
    const CONNECTIONS: usize = 3;
    let (client, server) =
        (End::new(Config::default(), acknowledged)?, End::new(Config::default(), acknowledged)?);
    let sent = client.adapter.completion_queue(64)?;
    let queue = client.domain.shared_send_queue(&sent, 8);
    let mut ends = Vec::new();
    for _ in 0..CONNECTIONS {
        let near = acknowledged(client.domain.queue_pair(&client.cq)).shared_send_queue(&queue).create()?;
        let far = server.domain.queue_pair(&server.cq).create()?;
        connect(&near, &far, &server.adapter)?;
        ends.push((near, far));
    }
    let region = server.register(&[0; 8 * CONNECTIONS], REMOTE)?;
    println!("one send queue of {} requests for {CONNECTIONS} connections", queue.depth());

    // A Read before the Send shows when the Send was transmitted: both leave in one call.
    let read = WorkRequest::read(0, &[], region.remote_addr(0)?);
    queue.post_all(&ends[0].0, vec![read, WorkRequest::send_inline(1, b"message1").into()])?;
    check(next(&sent)?.success()?.wr_id == 0, "the Read is complete")?;
    for (number, (near, far)) in ends.iter().enumerate().skip(1) {
        far.post_receive(number as u64 + 1, &[region.slice(8 * number..8 * number + 8)?])?;
        let message = format!("message{}", number + 1);
        queue.post(near, WorkRequest::send_inline(number as u64 + 1, message.as_bytes()))?;
        check(server.done()?.wr_id == number as u64 + 1, "it arrives")?;
    }
    check(sent.poll_one()?.is_none() && queue.outstanding() == CONNECTIONS, "nothing has completed")?;
    println!("the first message cannot be placed yet; those after it arrive, but do not complete before it");
    ends[0].1.post_receive(1, &[region.slice(..8)?])?;
    for (number, (near, _)) in ends.iter().enumerate() {
        let completion = next(&sent)?.success()?;
        check((completion.wr_id, completion.qp) == (number as u64 + 1, near.id()), "in order")?;
    }
    check(region.to_vec()? == b"message1message2message3", "every byte is right")?;
    println!("the server posts its receive: all complete, in the order of transmission");
    Ok(())
}
