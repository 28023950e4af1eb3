//! Completion notification: who is told that a request has completed, and when.

use crate::ends::{End, LOCAL, Result, TIMEOUT, acknowledged, check, connect, next, pair, pair_with};
use ironwarp::completion::{Arm, Class, CompletionHandler, CompletionQueue, Status};
use ironwarp::queue::{PostError, QueuePair, WorkRequest};
use ironwarp::{Config, Shutdown, WaitError};
use rustix::event::{PollFd, PollFlags, poll};
use std::num::NonZero;
use std::time::Instant;

/// Requirements N1, N2, N3 and N7: each of two completion queues has its own handler, and each handler its own
/// descriptor, on which a thread can sleep.
pub(crate) fn handlers() -> Result {
    let (client, server) =
        (End::new(Config::default(), acknowledged)?, End::new(Config::default(), |qp| qp)?);
    println!("the adapter has up to {} completion handlers", server.adapter.query().completion_handlers);
    let handlers = [server.adapter.completion_handler()?, server.adapter.completion_handler()?];
    check(handlers[0].id() != handlers[1].id(), "identifiers are unique")?;

    let queues = [server.adapter.completion_queue(16)?, server.adapter.completion_queue(16)?];
    let mut ends: Vec<(QueuePair, QueuePair)> = Vec::new();
    for (cq, handler) in queues.iter().zip(&handlers) {
        cq.set_handler(handler);
        let near = acknowledged(client.domain.queue_pair(&client.cq)).create()?;
        let far = server.domain.queue_pair(cq).create()?;
        far.post_receive(1, &[])?;
        connect(&near, &far, &server.adapter)?;
        check(!cq.arm(Arm::Next), "no message has arrived yet")?;
        ends.push((near, far));
    }
    println!("two handlers serve one completion queue each");

    ends[1].0.post_send(WorkRequest::send(1, &[]))?;
    let event = handlers[1].wait(TIMEOUT)?;
    client.done()?;
    check(event.cq == queues[1].id(), "the event names the queue")?;
    check(handlers[0].try_next().is_none(), "the other handler has no event")?;
    println!("a message for the second queue wakes the second handler only");
    check(queues[1].poll_one()?.is_some(), "the completion is there")?;

    // One handler may serve several queues.
    queues[1].set_handler(&handlers[0]);
    check(!queues[1].arm(Arm::Next), "the queue is empty")?;
    for (near, far) in &ends {
        far.post_receive(2, &[])?;
        near.post_send(WorkRequest::send(2, &[]))?;
        client.done()?;
    }
    let mut woken = Vec::new();
    while woken.len() < 2 {
        woken.push(handlers[0].wait(TIMEOUT)?.cq);
    }
    check(woken == queues.each_ref().map(CompletionQueue::id), "one event for each queue")?;
    println!("with both queues at the first handler, it reports both");
    Ok(())
}

const MESSAGES: u64 = 1000;

/// Requirement N4: a completion queue goes from handler to handler, and to none, while messages arrive.
pub(crate) fn change_handler() -> Result {
    let depth = usize::try_from(MESSAGES)?;
    let deep = |qp: ironwarp::queue::QueuePairBuilder| acknowledged(qp).receive_depth(depth);
    let (client, server) = pair_with(Config::default(), Config::default(), deep)?;
    let sink = server.register(&vec![0; 8 * depth], crate::ends::LOCAL)?;
    for number in 0..depth {
        server.qp.post_receive(number as u64, &[sink.slice(8 * number..8 * number + 8)?])?;
    }
    let handlers = [server.adapter.completion_handler()?, server.adapter.completion_handler()?];
    server.cq.set_handler(&handlers[0]);

    let received = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..MESSAGES {
                server.cq.set_handler([Some(&handlers[0]), None, Some(&handlers[1])][(number % 3) as usize]);
                if send_number(&client, number).is_err() {
                    break; // the receiver will miss it
                }
            }
            // While a queue has no handler, a due event waits for the next one.
            server.cq.set_handler(&handlers[0]);
        });
        receive_numbers(&server, &handlers)
    })?;

    let expected: Vec<u64> = (0..MESSAGES).collect();
    check(received == expected, "each message completes once, in order")?;
    let bytes: Vec<u8> = expected.iter().flat_map(|number| number.to_be_bytes()).collect();
    check(sink.to_vec()? == bytes, "every byte is right")?;
    println!("{MESSAGES} messages arrive while their completion queue moves between two handlers and none");
    println!("each is reported once and in order: none is lost, none is doubled");
    Ok(())
}

fn send_number(client: &End, number: u64) -> std::result::Result<(), String> {
    let sent = client.qp.post_send(WorkRequest::send_inline(number, &number.to_be_bytes()));
    sent.map_err(|error| error.to_string())?;
    client.done().map(drop).map_err(|error| error.to_string())
}

/// Receives messages, asleep at both handlers whenever there is none. Returns the identifiers of their receives.
fn receive_numbers(server: &End, handlers: &[CompletionHandler; 2]) -> Result<Vec<u64>> {
    let mut received = Vec::new();
    while received.len() < usize::try_from(MESSAGES)? {
        if let Some(completion) = server.cq.poll_one()? {
            received.push(completion.success()?.wr_id);
        } else if !server.cq.arm(Arm::Next) {
            // Nothing arrived before the queue was armed, so there will be an event.
            let mut descriptors = handlers.each_ref().map(|handler| PollFd::new(handler, PollFlags::IN));
            check(poll(&mut descriptors, Some(&TIMEOUT.try_into()?))? > 0, "an event arrives")?;
            handlers.iter().for_each(|handler| while handler.try_next().is_some() {});
        }
    }
    Ok(received)
}

/// Requirements N8 and N9: the sender decides which messages wake the receiver.
pub(crate) fn solicited() -> Result {
    let (client, server) = pair()?;
    for number in 0..5 {
        server.qp.post_receive(number, &[])?;
    }
    let handler = server.cq.own_handler();
    check(!server.cq.arm(Arm::Solicited), "the queue is empty")?;
    for number in 0..3 {
        client.qp.post_send(WorkRequest::send(number, &[]))?;
        client.done()?;
    }
    check(handler.try_next().is_none(), "plain messages raise no event")?;
    println!("armed for solicited completions: three plain messages raise no event");

    client.qp.post_send(WorkRequest::send(3, &[]).solicited())?;
    handler.wait(TIMEOUT)?;
    println!("a message with Solicited Event raises one");
    let mut completions = Vec::new();
    server.cq.poll(&mut completions, 16)?;
    check(completions.len() == 4 && completions[3].solicited, "the woken thread finds all four")?;
    println!("the woken thread finds all four completions at once");

    check(!server.cq.arm(Arm::Solicited), "the queue is empty")?;
    client.qp.disconnect();
    handler.wait(TIMEOUT)?;
    check(server.next()?.status == Status::Flushed, "the last receive is flushed")?;
    println!("an error counts as solicited: the flushed receive raises one, too");
    Ok(())
}

/// Requirements N5 and N6: a lane of its own serves low-latency queue pairs, and a program chooses the processors of
/// lanes.
pub(crate) fn classes() -> Result {
    let (client, server) = pair()?;
    let steering = server.adapter.steering();
    let is_shared = |qp: &QueuePair| qp.lane().is_some_and(|lane| lane < steering.lanes());
    check(is_shared(&server.qp), "a shared lane")?;
    println!("class {}: the queue pair shares its lane with others", Class::DEFAULT);

    let urgent = server.adapter.completion_handler()?;
    urgent.set_class(Class::LowLatency)?;
    let cq = server.adapter.completion_queue(16)?;
    cq.set_handler(&urgent);
    let near = acknowledged(client.domain.queue_pair(&client.cq)).create()?;
    let far = server.domain.queue_pair(&cq).create()?;
    connect(&near, &far, &server.adapter)?;
    check(far.lane() == Some(steering.lanes()), "the low-latency lane")?;
    println!("class {}: the queue pair is on a lane without bulk traffic", urgent.class());
    urgent.set_class(Class::Bulk(NonZero::<u8>::MIN))?;
    // Messages arrive while the queue pair moves to another lane.
    let start = Instant::now();
    while !is_shared(&far) {
        far.post_receive(1, &[])?;
        near.post_send(WorkRequest::send(2, &[]))?;
        client.done()?;
        check(next(&cq)?.success()?.wr_id == 1, "the message arrives")?;
        check(start.elapsed() < TIMEOUT, "the queue pair moves in time")?;
    }
    println!("class {}: it is back among the others, with the smallest share", urgent.class());

    let allowed = steering.processors(0)?;
    let (first, last) = (allowed[0], *allowed.last().ok_or("no processor")?);
    let handler = server.adapter.completion_handler()?;
    handler.set_consumer("storage");
    handler.set_processors(&[last])?;
    let cq = server.adapter.completion_queue(16)?;
    cq.set_handler(&handler);
    let near = client.domain.queue_pair(&client.cq).create()?;
    let far = server.domain.queue_pair(&cq).create()?;
    connect(&near, &far, &server.adapter)?;
    let runs_on =
        |processor| -> Result<bool> { Ok(steering.processors(far.lane().ok_or("no lane")?)? == [processor]) };
    check(runs_on(last)?, "its lane runs there only")?;
    println!(
        "handler of consumer storage, on processor {last}: a lane that runs there serves the queue pair"
    );
    if first != last {
        handler.set_processors(&[first])?;
    }
    check(runs_on(first)?, "it has moved")?;
    println!("the handler goes to processor {first}, and the queue pair with it");
    Ok(())
}

/// Requirement N10: what the adapter knows about a queue pair.
pub(crate) fn context() -> Result {
    let (client, server) = pair()?;
    let context = server.qp.query();
    check(
        context.domain == server.domain.id() && context.receive_cq == server.cq.id(),
        "the objects are ours",
    )?;
    check(context.handlers == [Some(server.cq.own_handler().id()); 2], "the queue's own handler")?;
    println!("queue pair {} in state {:?}", context.id, context.state);
    println!("protection domain {}, rights {}", context.domain, context.rights);
    println!(
        "send queue of {}, receive queue of {:?}",
        context.send_depth,
        context.receive_depth.unwrap_or(0)
    );
    println!("completion queues {} and {}, at a handler of their own", context.send_cq, context.receive_cq);
    let (Some(local), Some(remote)) = (context.local, context.remote) else {
        return Err("a connected queue pair has both ports".into());
    };
    let peer = client.qp.query();
    check((peer.local, peer.remote) == (Some(remote), Some(local)), "the peer has them the other way round")?;
    println!("local port {local}, remote port {remote}");
    Ok(())
}

/// Requirement N11: an adapter in use is shut down. What was accepted completes or is flushed, and then nothing follows.
pub(crate) fn end() -> Result {
    let (client, server) = pair()?;
    let sink = server.register(&[0; 3 * 8], LOCAL)?;
    for number in 0..5 {
        let slot = sink.slice(8 * (number % 3)..8 * (number % 3) + 8)?;
        server.qp.post_receive(number as u64, &[slot])?;
    }
    for number in 0..3_u64 {
        client.qp.post_send(WorkRequest::send_inline(number, &number.to_be_bytes()))?;
    }
    client.adapter.shutdown(Shutdown::Drain(TIMEOUT));
    for number in 0..3 {
        let done = client.cq.poll_one()?.ok_or("complete when the shutdown returns")?.success()?;
        check(done.wr_id == number, "completed in order")?;
    }
    let refused = client.qp.post_send(WorkRequest::send(3, &[]));
    check(refused == Err(PostError::ShutDown), "the adapter takes no request")?;
    println!("drain: three messages that were posted before are complete, and a fourth is refused");

    let handler = server.cq.own_handler();
    check(server.cq.arm(Arm::Next) || handler.wait(TIMEOUT).is_ok(), "the messages have arrived")?;
    server.adapter.shutdown(Shutdown::Flush);
    for number in 0..5 {
        let status = if number < 3 { Status::Success } else { Status::Flushed };
        let done = server.cq.poll_one()?.ok_or("complete when the shutdown returns")?;
        check((done.wr_id, done.status) == (number, status), "each receive has one completion")?;
    }
    let bytes: Vec<u8> = (0..3_u64).flat_map(u64::to_be_bytes).collect();
    check(sink.to_vec()? == bytes, "every byte is right")?;
    println!("flush at the peer: three receives have their messages, two are flushed");

    while handler.try_next().is_some() {}
    check(!server.cq.arm(Arm::Next), "nothing follows")?;
    check(handler.wait(None) == Err(WaitError::Stopped), "waiting ends at once")?;
    println!("after that: no completion, no event, and nobody waits for one");
    Ok(())
}
