//! Event queues: how often a thread is woken, what happens when a queue is full, and which queue, vector and lane an
//! event or a connection is assigned to.

use crate::ends::{End, Result, TIMEOUT, acknowledged, check, connect, pair};
use ironwarp::Config;
use ironwarp::completion::Arm;
use ironwarp::event::{AdminCommand, AsyncEvent, EventCode, EventMap, EventRoute, EventVector, MapShape};
use ironwarp::queue::{State, WorkRequest};
use ironwarp::steering::{HashKey, RedirectionTable};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::time::Duration;

/// Requirements I2 and I10: an event queue has no memory until it is needed, and an armed one wakes once and is unarmed;
/// moderation makes one event of several completions.
pub(crate) fn moderation() -> Result {
    states()?;
    completions()?;
    asynchronous()
}

/// The states of a handler's event queue, and the program that arms it late.
fn states() -> Result {
    let (client, server) = pair()?;
    for number in 0..2 {
        server.qp.post_receive(number, &[])?;
    }
    let handler = server.adapter.completion_handler()?;
    server.cq.set_handler(&handler);
    let state = || handler.stats().state;
    let mut states = vec![state()];
    check(!server.cq.arm(Arm::Next), "the queue is empty")?;
    states.push(state());
    client.qp.post_send(WorkRequest::send(1, &[]))?;
    client.done()?;
    check(readable(&handler, TIMEOUT)?, "woken")?;
    states.push(state());
    check(handler.try_next().is_some(), "the event")?;
    states.push(state());
    println!(
        "an event queue before it gets memory, armed, with an event, after the event was taken: {states:?}"
    );
    server.done()?;

    check(handler.poll_one().is_none(), "no other event")?;
    check(!server.cq.arm(Arm::Next), "the queue is empty")?;
    client.qp.post_send(WorkRequest::send(2, &[]))?;
    client.done()?;
    while handler.stats().unread == 0 {
        std::thread::yield_now();
    }
    check(!readable(&handler, Duration::ZERO)?, "not armed")?;
    handler.arm();
    check(readable(&handler, Duration::ZERO)?, "armed")?;
    println!("a program that polled is not woken for an event until it arms the event queue");
    Ok(())
}

/// Asynchronous events: none is lost before the program asks for them, and their wakeups are moderated.
fn asynchronous() -> Result {
    const EVENTS: usize = 3;
    let (client, server) = pair()?;
    server.cq.resize(1)?;
    for number in 0..2 {
        server.qp.post_receive(number, &[])?;
        client.qp.post_send(WorkRequest::send(number, &[]))?;
    }
    check(server.qp.wait_closed(TIMEOUT), "the completion queue overran")?;
    let event = server.adapter.async_events()?.wait(TIMEOUT)?;
    println!("an event from before the program asked for events: {event}");

    let (client, server) = pair()?;
    let mut queue_pairs = Vec::new();
    for _ in 0..EVENTS {
        let (near, far) =
            (client.domain.queue_pair(&client.cq).create()?, server.domain.queue_pair(&server.cq).create()?);
        connect(&near, &far, &server.adapter)?;
        queue_pairs.push((near, far));
    }
    let events = client.adapter.async_events()?;
    events.moderate(EVENTS, Duration::ZERO)?;
    for (near, _) in &queue_pairs {
        near.set_state(State::Drained)?;
    }
    let mut drained = vec![events.wait(TIMEOUT)?];
    drained.extend(std::iter::from_fn(|| events.try_next()));
    check(drained.len() == EVENTS, "all are there when the first is reported")?;
    println!("a wakeup for every {EVENTS} asynchronous events: {EVENTS} send queues are drained, one wakeup");
    Ok(())
}

/// Moderation of completion queues, by count and by time.
fn completions() -> Result {
    const MESSAGES: u64 = 8;
    for count in [1, 4] {
        let (client, server) = pair()?;
        for number in 0..MESSAGES {
            server.qp.post_receive(number, &[])?;
        }
        let handler = server.adapter.completion_handler()?;
        server.cq.set_handler(&handler);
        server.cq.moderate(count, Duration::ZERO)?;
        let (mut received, mut sent) = (Vec::new(), 0);
        while received.len() < usize::try_from(MESSAGES)? {
            check(!server.cq.arm(Arm::Next), "the queue is empty")?;
            for _ in 0..count {
                client.qp.post_send(WorkRequest::send(sent, &[]))?;
                client.done()?;
                sent += 1;
            }
            handler.wait(TIMEOUT)?;
            check(handler.try_next().is_none(), "armed once, woken once")?;
            server.cq.poll(&mut received, 16)?;
        }
        let order = received.iter().map(|completion| completion.wr_id);
        check(order.eq(0..MESSAGES), "every message is reported once and in order")?;
        let events = handler.stats().written;
        check(events == MESSAGES / count as u64, "one event per batch")?;
        println!(
            "an event for every {count} completions: {MESSAGES} messages raise {events} events, none is lost"
        );
    }

    let (client, server) = pair()?;
    server.qp.post_receive(1, &[])?;
    server.cq.moderate(4, Duration::from_millis(1))?;
    check(!server.cq.arm(Arm::Next), "the queue is empty")?;
    client.qp.post_send(WorkRequest::send(1, &[]))?;
    server.cq.own_handler().wait(TIMEOUT)?;
    check(server.cq.poll_one()?.is_some(), "the completion is there")?;
    println!("a single message does not wait forever: its event comes when the period has passed");
    Ok(())
}

/// Requirement I5: an overflow is never silent.
pub(crate) fn overflow() -> Result {
    const QUEUES: usize = 100;
    let (client, server) = pair()?;
    let handler = server.adapter.completion_handler()?;
    let (mut size, mut queues) = (0, Vec::new());
    for number in 0..QUEUES {
        let cq = server.adapter.completion_queue(1)?;
        cq.set_handler(&handler);
        let near = acknowledged(client.domain.queue_pair(&client.cq)).create()?;
        let far = server.domain.queue_pair(&cq).create()?;
        far.post_receive(1, &[])?;
        connect(&near, &far, &server.adapter)?;
        check(!cq.arm(Arm::Next), "the queue is empty")?;
        if number == 0 {
            size = handler.stats().size;
        }
        near.post_send(WorkRequest::send(1, &[]))?;
        client.done()?;
        queues.push((cq, near, far));
    }
    for (cq, ..) in &queues {
        let event = handler.wait(TIMEOUT)?;
        check(event.cq == cq.id(), "in order")?;
    }
    check(handler.stats().size > size, "the queue has grown")?;
    println!("{QUEUES} events, unread, in an event queue of {size}: it grows, and all are there in order");

    let events = server.adapter.async_events()?;
    server.cq.resize(1)?;
    for number in 0..2 {
        server.qp.post_receive(number, &[])?;
        client.qp.post_send(WorkRequest::send(number, &[]))?;
    }
    let event = events.wait(TIMEOUT)?;
    check(event == AsyncEvent::CqError(server.cq.id()), "the queue is named")?;
    println!("two completions in a completion queue of one: {event}");
    check(server.qp.wait_closed(TIMEOUT), "the connection ends")?;
    println!("its connection ends: {}", server.qp.error().ok_or("no error")?);
    Ok(())
}

/// Waits until a descriptor is readable. Returns whether it is.
fn readable(descriptor: &impl AsFd, timeout: Duration) -> Result<bool> {
    Ok(poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&timeout.try_into()?))? > 0)
}

/// Requirements I6 and I8: a map assigns each event to a queue and a vector, by its code and its lane. It can be changed
/// while events arrive.
pub(crate) fn map() -> Result {
    let (client, server) = pair()?;
    let adapter = &server.adapter;
    let steering = adapter.steering();
    let asynchronous = adapter.async_events()?;
    server.cq.follow_map()?;
    let texts = [
        "three vectors: completions wake that of their lane, asynchronous events of queue 1 another",
        "one vector: both events share it, and each is found in its own queue",
        "no vector: both share the line, and each is found in its own queue",
    ];
    for (vectors, text) in [3, 1, 0].into_iter().zip(texts) {
        let map = EventMap::new(MapShape::ByFunction, steering.lanes(), vectors);
        adapter.set_event_map(map.clone())?;
        let command = AsyncEvent::AdminCommand(AdminCommand::SetEventMap);
        check(asynchronous.try_next() == Some(command), "the change is reported")?;
        for lane in 0..steering.lanes() {
            steering.move_queue_pair(&server.qp, lane)?;
            let routes = [map.route(EventCode::SqDrained, lane), map.route(EventCode::Completion, lane)];
            let vector = [adapter.vector(routes[0].vector)?, adapter.vector(routes[1].vector)?];
            let shared = routes[0].vector == routes[1].vector;
            check(shared == (vectors < 2), "with few vectors, events share one")?;

            server.qp.post_receive(1, &[])?;
            check(!server.cq.arm(Arm::Next), "the queue is empty")?;
            client.qp.post_send(WorkRequest::send(1, &[]).unsignaled())?;
            check(readable(&vector[1], TIMEOUT)?, "the vector of completions wakes")?;
            check(readable(&vector[0], Duration::ZERO)? == shared, "and no other")?;
            let event = adapter.lane_handler(lane)?.try_next();
            check(event.is_some_and(|event| event.cq == server.cq.id()), "the event")?;
            server.done()?;

            server.qp.set_state(State::Drained)?;
            check(readable(&vector[0], TIMEOUT)?, "the vector of asynchronous events wakes")?;
            check(readable(&vector[1], Duration::ZERO)? == shared, "and no other")?;
            check(asynchronous.try_next() == Some(AsyncEvent::SqDrained(server.qp.id())), "the event")?;
            server.qp.set_state(State::ReadyToSend)?;
            check(routes[0].queue == 1, "asynchronous events have queue 1")?;
        }
        println!("{text}");
    }

    let mut map = EventMap::new(MapShape::ByCode, steering.lanes(), 0);
    let mut queues = Vec::new();
    for lane in 0..steering.lanes() {
        let queue = adapter.event_queue()?;
        let route = EventRoute { queue: queue.number().ok_or("no number")?, vector: EventVector::Line };
        map.assign(EventCode::SqDrained, lane, route)?;
        queues.push(queue);
    }
    adapter.set_event_map(map)?;
    for (lane, queue) in queues.iter().enumerate() {
        steering.move_queue_pair(&server.qp, lane)?;
        server.qp.set_state(State::Drained)?;
        check(queue.wait(TIMEOUT)? == AsyncEvent::SqDrained(server.qp.id()), "in the queue of the lane")?;
        server.qp.set_state(State::ReadyToSend)?;
    }
    println!("an asynchronous queue for each lane: the event follows the queue pair from lane to lane");

    let channel = adapter.channel_events()?;
    let near = client.domain.queue_pair(&client.cq).create()?;
    let far = server.domain.queue_pair(&server.cq).create()?;
    connect(&near, &far, adapter)?;
    check(matches!(channel.wait(TIMEOUT)?, AsyncEvent::ConnectionRequest(_)), "the request")?;
    check(channel.wait(TIMEOUT)? == AsyncEvent::ConnectionChange(far.id()), "the connection")?;
    println!("channel events, in queue 2: a connection is requested, and established");
    Ok(())
}

/// Requirements I7 and I9: a keyed hash of the addresses and a table select the lane of a connection. Key and table can be
/// changed, and connections can be moved.
pub(crate) fn table() -> Result {
    const CONNECTIONS: usize = 16;
    let (client, server) =
        (End::new(Config::default(), acknowledged)?, End::new(Config::default(), acknowledged)?);
    let steering = server.adapter.steering();
    let lanes = steering.lanes();
    println!("{} entries, {lanes} lanes", steering.table().entries().len());
    let connections = || -> Result<Vec<_>> {
        let mut ends = Vec::new();
        for _ in 0..CONNECTIONS {
            let near = acknowledged(client.domain.queue_pair(&client.cq)).create()?;
            let far = server.domain.queue_pair(&server.cq).create()?;
            connect(&near, &far, &server.adapter)?;
            ends.push((near, far));
        }
        Ok(ends)
    };
    let on = |ends: &[(ironwarp::queue::QueuePair, ironwarp::queue::QueuePair)], lane| {
        ends.iter().filter(|(_, far)| far.lane() == Some(lane)).count()
    };
    let spread = connections()?;
    let counts: Vec<usize> = (0..lanes).map(|lane| on(&spread, lane)).collect();
    check(counts.iter().sum::<usize>() == CONNECTIONS, "each has a lane")?;
    println!("{CONNECTIONS} connections are distributed over the lanes by a hash of their addresses");

    steering.set_key(&HashKey::default())?;
    check((0..lanes).map(|lane| on(&spread, lane)).eq(counts), "the key applies to new connections")?;
    println!("the key is changed: they stay on their lanes");

    let mut table = RedirectionTable::new(vec![u16::try_from(lanes - 1)?; 512])?;
    table.set_mask(0xff)?;
    steering.set_table(table)?;
    let later = connections()?;
    check(on(&later, lanes - 1) == CONNECTIONS, "the table applies to new connections")?;
    println!(
        "the table is changed, to 512 entries of which 256 are used: {CONNECTIONS} new ones are all on the last lane"
    );

    for (number, (near, far)) in (0..).zip(&later) {
        far.post_receive(number, &[])?;
        steering.move_queue_pair(far, 0)?;
        near.post_send(WorkRequest::send(number, &[]))?;
        client.done()?;
        check(server.done()?.wr_id == number && far.lane() == Some(0), "moved")?;
    }
    println!("each is moved to the first lane, and its message arrives");
    Ok(())
}
