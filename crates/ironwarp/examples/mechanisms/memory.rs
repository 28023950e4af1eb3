//! Registered memory: who may access what, for how long, and what is refused.

use crate::ends::{
    End, LOCAL, REMOTE, Result, TIMEOUT, acknowledged, check, connect, pair, pair_with, whole,
};
use ironwarp::Config;
use ironwarp::completion::Status;
use ironwarp::memory::{Access, Buffer, Check, FastRegion, MemoryRegion, PageSize, RemoteAddr, Tag};
use ironwarp::queue::{PostError, QpError, RegistrationFailure, State, WorkRequest};

/// Writes to an address that the server must refuse. Returns the failed check.
fn refused(client: &End, server: &End, addr: RemoteAddr) -> Result<Check> {
    client.qp.post_send(WorkRequest::write_inline(9, b"not here", addr))?;
    check(client.next()?.status == Status::RemoteAccess, "the Write fails")?;
    check(server.qp.wait_closed(TIMEOUT), "the connection ends")?;
    match server.qp.error() {
        Some(QpError::Remote(denied)) => Ok(denied.check),
        error => Err(format!("unexpected error {error:?}").into()),
    }
}

/// Requirements M4, M8 and M9: each wrong access is refused by the check that it violates, and no byte changes. A stale
/// tag has the right index and another instance.
pub(crate) fn checks() -> Result {
    type Wrong = fn(&MemoryRegion, &MemoryRegion) -> RemoteAddr;
    let wrong: [(&str, Check, Wrong); 4] = [
        ("a stale tag", Check::Instance, |region, _| RemoteAddr { tag: Tag(region.tag().0 ^ 1), offset: 0 }),
        ("another protection domain", Check::Domain, |_, foreign| RemoteAddr {
            tag: foreign.tag(),
            offset: 0,
        }),
        ("one byte too far", Check::Range, |region, _| RemoteAddr { tag: region.tag(), offset: 57 }),
        ("no right to write", Check::Right, |region, _| RemoteAddr { tag: region.tag(), offset: 0 }),
    ];
    for (what, expected, addr) in wrong {
        let (client, server) = pair()?;
        let access = if expected == Check::Right { LOCAL | Access::REMOTE_READ } else { REMOTE };
        let region = server.register(&[7; 64], access)?;
        let foreign = server.adapter.protection_domain().register(Buffer::copy_of(&[7; 64])?, REMOTE)?;
        let failed = refused(&client, &server, addr(&region, &foreign))?;
        check(failed == expected, what)?;
        check(region.to_vec()? == [7; 64] && foreign.to_vec()? == [7; 64], "no byte changed")?;
        println!("{what}: refused, {failed}");
    }

    let (client, server) = pair()?;
    let (mine, theirs) =
        (client.register(&[1; 64], Access::LOCAL_WRITE)?, server.register(&[7; 64], REMOTE)?);
    client.qp.post_send(WorkRequest::write(1, &[whole(&mine)?], theirs.remote_addr(0)?))?;
    let failed = client.next()?;
    check(failed.status == Status::LocalProtection && theirs.to_vec()? == [7; 64], "nothing was sent")?;
    println!("local memory without the right to read: refused before anything is sent");
    Ok(())
}

/// Requirements M2, M3 and M5: translation joins separate buffers under one tag, and two tags can share one
/// translation.
pub(crate) fn translation() -> Result {
    let (client, server) = pair()?;
    let parts = [&b"one tag, "[..], b"three ", b"buffers"];
    let mut buffers = Vec::new();
    for part in parts {
        buffers.push(Buffer::copy_of(part)?);
    }
    let region = server.domain.register_list(buffers, REMOTE)?;
    let sink = client.register(&[0; 22], LOCAL)?;
    client.qp.post_send(WorkRequest::read(1, &[whole(&sink)?], region.remote_addr(0)?))?;
    client.done()?;
    let read = String::from_utf8(sink.to_vec()?)?;
    check(read == "one tag, three buffers", "the buffers in order")?;
    println!("one Read returns three separate buffers: {read}");

    let read_only = region.share(LOCAL | Access::REMOTE_READ)?;
    client.qp.post_send(WorkRequest::write_inline(2, b"ONE", region.remote_addr(0)?))?;
    client.done()?;
    client.qp.post_send(WorkRequest::read(3, &[whole(&sink)?], read_only.remote_addr(0)?))?;
    client.done()?;
    let read = String::from_utf8(sink.to_vec()?)?;
    check(read == "ONE tag, three buffers", "both tags lead to the same memory")?;
    println!("a second tag for the same memory sees what was written through the first: {read}");
    let failed = refused(&client, &server, read_only.remote_addr(0)?)?;
    check(failed == Check::Right && region.to_vec()? == read.as_bytes(), "rights are separate")?;
    println!("it has rights of its own: a Write is refused");
    pages()
}

/// Requirement M3: a work request registers a list of pages, in any order and of any size. Its tables are of the first
/// order, or of the second if the list is long.
fn pages() -> Result {
    let (client, server) = pair()?;
    for (size, count) in [(PageSize::KIB_4, 8), (PageSize::KIB_4, 1000), (PageSize::MIB_2, 4)] {
        let page = usize::try_from(size.bytes())?;
        let buffer = Buffer::builder().page_size(size).allocate(count * page)?;
        let region = server.domain.allocate_region([buffer])?;
        // Backwards, from the middle of the last page to the middle of the first.
        let list = region.pages(size, (0..count).rev().map(|n| n * page))?;
        let list = list.range(page / 2..count * page - page / 2)?;
        server.qp.post_send(WorkRequest::register_pages(1, &list, REMOTE))?;
        server.done()?;
        let boundary = list.len() / 2 / page * page + page / 2;
        client.qp.post_send(WorkRequest::write_inline(2, b"two pages", list.remote_addr(boundary - 4)?))?;
        client.done()?;
        let (mut first, mut second) = ([0; 4], [0; 5]);
        let after = count - 1 - (boundary + page / 2) / page;
        region.read((after + 2) * page - 4, &mut first)?;
        region.read(after * page, &mut second)?;
        check(&first == b"two " && &second == b"pages", "each part is in its page")?;
        println!("{count} pages of {size}, backwards: a Write across a boundary reaches both pages");
    }
    Ok(())
}

/// Requirements M3, M5 and M9: a window opens a part of a region. In strict mode, peers reach nothing but windows.
pub(crate) fn window() -> Result {
    let (client, server) = pair()?;
    let region = server.register(&[b'.'; 24], LOCAL | Access::BIND)?;
    let window = server.domain.window()?;
    server.qp.post_send(WorkRequest::bind(1, &window, &region, 8..16, Access::REMOTE_WRITE)?)?;
    server.done()?;
    client.qp.post_send(WorkRequest::write_inline(2, b"a window", window.remote_addr(0)))?;
    client.done()?;
    println!("the peer writes through a window to the middle of a region: {}", text(&region)?);
    let failed = refused(&client, &server, window.remote_addr(1))?;
    check(region.to_vec()? == b"........a window........", "no other byte changed")?;
    println!("a Write that leaves the window: refused, {failed}");
    let busy = region.deregister().err().ok_or("the region has a window")?;
    check(matches!(busy, ironwarp::memory::DeregisterError::Busy { windows: 1, .. }), "the region waits")?;
    println!("the region cannot be deregistered while a window is bound to it");

    let strict = Config::default().strict_windows(true);
    let (client, server) = pair_with(Config::default(), strict, acknowledged)?;
    let region = server.register(&[7; 8], REMOTE)?;
    let failed = refused(&client, &server, region.remote_addr(0)?)?;
    check(failed == Check::Kind && region.to_vec()? == [7; 8], "only windows")?;
    println!("strict mode: a Write to a region is refused, although the region allows it");
    Ok(())
}

fn text(region: &MemoryRegion) -> Result<String> {
    Ok(String::from_utf8(region.to_vec()?)?)
}

/// Requirement M10: memory that serves one message and then closes itself.
pub(crate) fn once() -> Result {
    let (client, server) = pair()?;
    let region = server.domain.register_once(Buffer::new(200_000)?, REMOTE)?;
    let message = client.register(&crate::ends::pattern(200_000), LOCAL)?;
    client.qp.post_send(WorkRequest::write(1, &[whole(&message)?], region.remote_addr(0)?))?;
    client.done()?;
    check(region.to_vec()? == message.to_vec()?, "every byte of the message arrived")?;
    println!("one-touch memory takes a Write of {} bytes, in several segments", region.len());
    let failed = refused(&client, &server, region.remote_addr(0)?)?;
    check(region.to_vec()? == message.to_vec()?, "no byte changed")?;
    println!("a second Write: refused, {failed}");
    Ok(())
}

/// Posts a registration, and in the same list a message with the tag that it assigns.
fn register_and_send(server: &End, region: &FastRegion) -> Result {
    let tag = region.next_tag();
    let register = WorkRequest::register(1, region, REMOTE);
    let send = WorkRequest::send_inline(2, &tag.0.to_be_bytes());
    Ok(server.qp.post_send_all(vec![register, send.into()])?)
}

/// Requirements M6 and M12: one request registers memory and sends its tag to the peer, which ends the registration with
/// a Send with Invalidate. Requirement M17: a queue pair can disable registration by request.
pub(crate) fn register() -> Result {
    let (client, server) = pair()?;
    let (inbox, sink) = (client.register(&[0; 4], LOCAL)?, client.register(&[0; 5], LOCAL)?);
    client.qp.post_receive(1, &[whole(&inbox)?])?;
    let region = server.domain.allocate_region(vec![Buffer::copy_of(b"hello")?])?;
    let announce = WorkRequest::send_inline(1, &region.next_tag().0.to_be_bytes());
    server.qp.post_send(announce.register(&region, REMOTE))?;
    server.done()?;
    check(server.cq.poll_one()?.is_none(), "one completion")?;
    println!("one request, with one completion, registers memory and sends its tag to the peer");

    client.done()?;
    let tag = Tag(u32::from_be_bytes(inbox.to_vec()?.try_into().map_err(|_| "not a tag")?));
    let addr = RemoteAddr { tag, offset: 0 };
    client.qp.post_send(WorkRequest::read(2, &[whole(&sink)?], region.remote_addr(0)?))?;
    client.done()?;
    check(tag == region.tag() && sink.to_vec()? == b"hello", "the tag is valid at once")?;
    println!("the peer reads with that tag: hello");

    server.qp.post_receive(3, &[])?;
    client.qp.post_send(WorkRequest::send(3, &[]).invalidate(tag))?;
    client.done()?;
    check(server.done()?.invalidated == Some(tag), "the completion names the tag")?;
    println!("the peer ends the registration with a Send with Invalidate, and the completion names the tag");
    let failed = refused(&client, &server, addr)?;
    println!("the peer writes with that tag: refused, {failed}");

    let server = End::new(Config::default(), |qp| acknowledged(qp).registration_by_request(false))?;
    let client = End::new(Config::default(), acknowledged)?;
    connect(&client.qp, &server.qp, &server.adapter)?;
    let region = server.domain.allocate_region(vec![Buffer::new(8)?])?;
    let refused = server.qp.post_send(WorkRequest::send(1, &[]).register(&region, REMOTE));
    check(refused == Err(PostError::RegistrationDisabled), "the request is refused")?;
    println!(
        "a queue pair on which registration by request is disabled refuses the request when it is posted"
    );
    Ok(())
}

/// Requirement M7: what a failed registration does to the requests after it and to the connection.
pub(crate) fn failure() -> Result {
    for option in [RegistrationFailure::Reactive, RegistrationFailure::Anticipatory] {
        let client = End::new(Config::default(), acknowledged)?;
        let server = End::new(Config::default(), |qp| acknowledged(qp).registration_failure(option))?;
        connect(&client.qp, &server.qp, &server.adapter)?;
        let inbox = client.register(&[0; 4], LOCAL)?;
        for number in 0..2 {
            client.qp.post_receive(number, &[whole(&inbox)?])?;
        }
        let region = server.domain.allocate_region(vec![Buffer::new(8)?])?;
        register_and_send(&server, &region)?;
        server.done()?;
        server.done()?;

        // Memory that is registered already cannot be registered again.
        register_and_send(&server, &region)?;
        check(server.next()?.status == Status::WindowBind, "the registration fails")?;
        check(server.next()?.status == Status::Flushed, "the request after it is flushed")?;
        if option == RegistrationFailure::Anticipatory {
            check(server.qp.state() == State::Error, "the connection ends")?;
            check(client.done()?.wr_id == 0, "the first message")?;
            let flushed = client.next()?;
            check(matches!(flushed.cause.as_deref(), Some(QpError::Terminated(_))), "a Terminate")?;
            println!(
                "anticipatory: the registration fails, the peer gets a Terminate, and all requests are flushed"
            );
            continue;
        }
        check(server.qp.state() == State::Drained, "the queue is drained")?;
        println!(
            "reactive: the registration fails, the message after it is flushed, the send queue is drained"
        );
        server.qp.set_state(State::ReadyToSend)?;
        server.qp.post_send(WorkRequest::invalidate_region(3, &region))?;
        register_and_send(&server, &region)?;
        (0..3).try_for_each(|_| server.done().map(drop))?;
        client.done()?;
        client.done()?;
        check(inbox.to_vec()? == region.tag().0.to_be_bytes(), "the new tag arrives")?;
        println!("the program corrects its mistake, goes on, and the peer gets the new tag");
    }
    Ok(())
}

/// Requirement M14: the end that detects an error says why, and names the segment.
pub(crate) fn terminate() -> Result {
    let (client, server) = pair()?;
    let region = server.register(&[7; 8], LOCAL)?;
    client.qp.post_send(WorkRequest::write_inline(1, b"not here", region.remote_addr(0)?))?;
    let failed = client.next()?;
    let cause = failed.cause.as_deref().ok_or("no cause")?;
    let QpError::Terminated(terminate) = cause else { return Err(format!("unexpected {cause}").into()) };
    check(region.to_vec()? == [7; 8], "no byte changed")?;
    println!("status of the Write: {}", failed.status);
    println!("Terminate from the peer: {terminate}");
    println!("vendor_err for C programs: {:#x}", cause.vendor_err());
    Ok(())
}
