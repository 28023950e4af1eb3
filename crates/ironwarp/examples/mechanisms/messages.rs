//! Messages: which operations there are, when they complete, and how they travel.

use crate::ends::{
    End, LOCAL, REMOTE, Result, TIMEOUT, acknowledged, check, next, pair, pair_with, pattern, whole,
};
use ironwarp::completion::{Arm, Opcode};
use ironwarp::connection::{AcceptOptions, ConnectOptions};
use ironwarp::datagram::{DatagramRequest, Destination, Grh};
use ironwarp::memory::{Access, Buffer};
use ironwarp::queue::{Completes, QpError, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_pcap::{Capture, Kind};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Requirement M1: the operations of a connection.
pub(crate) fn operations() -> Result {
    let (client, server) = pair()?;
    let access = REMOTE | Access::REMOTE_ATOMIC;
    let (mine, theirs) = (client.register(b"from client", LOCAL)?, server.register(&[0; 11], access)?);
    server.qp.post_receive(1, &[whole(&theirs)?])?;
    client.qp.post_send(WorkRequest::send(1, &[whole(&mine)?]))?;
    client.done()?;
    check(server.done()?.byte_len == 11 && theirs.to_vec()? == b"from client", "the message arrives")?;
    println!("Send: 11 bytes in the memory that the server's receive names");

    mine.write(0, b"FROM")?;
    client.qp.post_send(WorkRequest::write(2, &[whole(&mine)?], theirs.remote_addr(0)?))?;
    client.done()?;
    check(theirs.to_vec()? == b"FROM client", "the bytes are there")?;
    println!("Write: 11 bytes in the server's memory, and the server was not involved");

    theirs.write(5, b"server")?;
    client.qp.post_send(WorkRequest::read(3, &[whole(&mine)?], theirs.remote_addr(0)?))?;
    client.done()?;
    check(mine.to_vec()? == b"FROM server", "the bytes are there")?;
    println!("Read: 11 bytes of the server's memory");

    let (word, old) = (server.register(&40_u64.to_ne_bytes(), access)?, client.register(&[0; 8], LOCAL)?);
    client.qp.post_send(WorkRequest::fetch_add(4, whole(&old)?, word.remote_addr(0)?, 2))?;
    client.done()?;
    check(old.to_vec()? == 40_u64.to_ne_bytes() && word.to_vec()? == 42_u64.to_ne_bytes(), "the sum")?;
    client.qp.post_send(WorkRequest::compare_swap(5, whole(&old)?, word.remote_addr(0)?, 42, 7))?;
    client.done()?;
    check(old.to_vec()? == 42_u64.to_ne_bytes() && word.to_vec()? == 7_u64.to_ne_bytes(), "swapped")?;
    println!("FetchAdd and CompareSwap: each returns the old value and changes the server's word");
    Ok(())
}

/// Requirement P2: a channel is acknowledged or not, and connected or not.
pub(crate) fn channels() -> Result {
    connected()?;
    connectionless()?;
    acknowledged_datagrams()
}

/// Whether a request completes when it was sent, or when the peer has it, is a property of the channel.
fn connected() -> Result {
    for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
        let (client, server) = pair_with(Config::default(), Config::default(), |qp| qp.completes(completes))?;
        let inbox = server.register(&[0; 5], LOCAL)?;
        // The server has posted no receive yet, so that the message cannot be placed.
        client.qp.post_send(WorkRequest::send_inline(1, b"hello"))?;
        if completes == Completes::WhenSent {
            client.done()?;
            println!("unacknowledged: the Send completes, although the server cannot place it yet");
        } else {
            // A message in the other direction shows that the connection works.
            client.qp.post_receive(2, &[])?;
            server.qp.post_send(WorkRequest::send(2, &[]).unsignaled())?;
            check(client.done()?.opcode == Opcode::Receive, "only the receive has completed")?;
            check(client.cq.poll_one()?.is_none(), "the Send has not completed")?;
            println!("acknowledged: the Send does not complete as long as the server cannot place it");
        }
        server.qp.post_receive(3, &[whole(&inbox)?])?;
        while server.done()?.opcode != Opcode::Receive {}
        check(inbox.to_vec()? == b"hello", "the message arrives")?;
        if completes == Completes::WhenAcknowledged {
            check(client.done()?.opcode == Opcode::Send, "the Send completes")?;
            println!("the server posts a receive: the message is placed, and the Send completes");
        }
    }
    Ok(())
}

/// Without a connection, each request names its destination, and a message is one cell.
fn connectionless() -> Result {
    const QKEY: u32 = 0x1ee7;
    let adapter = Adapter::new()?;
    let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    let sender = domain.datagram_queue_pair(&cq).qkey(QKEY).create()?;
    let region = domain.register(Buffer::new(2 * 8192)?, LOCAL)?;
    for (number, text) in [b"first ", b"second"].into_iter().enumerate() {
        let inbox = adapter.completion_queue(64)?;
        let receiver = domain.datagram_queue_pair(&inbox).qkey(QKEY).create()?;
        receiver.post_receive(1, &[region.slice(8192 * number..8192 * number + 8192)?])?;
        let address = sender.address_handle("127.0.0.1".parse()?)?;
        let to = Destination { address, qpn: receiver.qpn(), qkey: QKEY };
        sender.post_send(DatagramRequest::send_inline(1, text, to))?;
        let len = next(&inbox)?.success()?.byte_len as usize;
        next(&cq)?.success()?;
        let mut received = vec![0; len];
        region.read(8192 * number, &mut received)?;
        let (_, body) = Grh::split(&received).ok_or("no header")?;
        check(body == text, "the message arrives")?;
        if number == 1 {
            println!("connectionless: one queue pair sends to two others, which its requests name");
            let long = DatagramRequest::send(2, &[region.slice(..5000)?], to);
            sender.post_send(long)?;
            let failed = next(&cq)?;
            let cause = failed.cause.as_deref().ok_or("no cause")?;
            check(matches!(cause, QpError::DatagramTooLong { .. }), "one cell and no more")?;
            println!("a longer message is not segmented: {cause}");
        }
    }
    Ok(())
}

/// The two attributes are independent: without a connection, requests can be acknowledged as well.
fn acknowledged_datagrams() -> Result {
    let adapter = Adapter::new()?;
    let (cq, inbox, domain) =
        (adapter.completion_queue(64)?, adapter.completion_queue(64)?, adapter.protection_domain());
    let acknowledged = |cq| domain.datagram_queue_pair(cq).completes(Completes::WhenAcknowledged).create();
    let (sender, receiver) = (acknowledged(&cq)?, acknowledged(&inbox)?);
    let region = domain.register(Buffer::new(8192)?, LOCAL)?;
    let to =
        Destination { address: sender.address_handle("127.0.0.1".parse()?)?, qpn: receiver.qpn(), qkey: 0 };
    sender.post_send(DatagramRequest::send_inline(1, b"registered mail", to))?;
    while receiver.drops().no_receive == 0 {
        check(cq.poll_one()?.is_none() && inbox.poll_one()?.is_none(), "nothing completes")?;
    }
    println!("connectionless, acknowledged: the request waits, because the receiver has posted no receive");
    receiver.post_receive(2, &[whole(&region)?])?;
    next(&cq)?.success()?;
    let len = inbox.poll_one()?.ok_or("not placed yet")?.success()?.byte_len as usize;
    let mut received = vec![0; len];
    region.read(0, &mut received)?;
    let (_, body) = Grh::split(&received).ok_or("no header")?;
    check(body == b"registered mail", "the message is in the memory of the receive")?;
    println!("the receiver posts a receive: the message is sent again and placed, and the request completes");
    Ok(())
}

/// A capture file, removed when dropped.
struct CaptureFile(PathBuf);

impl CaptureFile {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("ironwarp-mechanisms-{}.pcap", std::process::id())))
    }

    fn config(&self) -> Config {
        Config::default().pcap(self.0.clone())
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The captured messages of the client whose name begins like this, in order, and their payload.
fn captured(path: &Path, name: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let capture = Capture::open(path)?;
    let [conversation] = &capture.conversations[..] else { return Err("not one connection".into()) };
    check(conversation.problems.is_empty(), "lengths, sequence numbers and CRCs are right")?;
    let frames = conversation.frames.iter().filter(|frame| frame.from_initiator);
    let fpdus = frames.filter_map(|frame| match &frame.kind {
        Kind::Fpdu { fpdu, payload } if frame.name().starts_with(name) => {
            Some((fpdu.to_string(), payload.clone()))
        }
        _ => None,
    });
    Ok(fpdus.collect())
}

/// Requirement P3: a message travels as cells, here FPDUs, each with place, length and CRC.
pub(crate) fn cells() -> Result {
    let file = CaptureFile::new();
    let (client, server) = pair_with(file.config(), Config::default(), acknowledged)?;
    let bytes = pattern(200_000);
    let (mine, theirs) = (client.register(&bytes, LOCAL)?, server.register(&vec![0; bytes.len()], REMOTE)?);
    client.qp.post_send(WorkRequest::write(1, &[whole(&mine)?], theirs.remote_addr(0)?))?;
    client.done()?;
    check(theirs.to_vec()? == bytes, "the message is reassembled")?;
    drop(client);

    let cells = captured(&file.0, "Write")?;
    let (first, last) = cells.first().zip(cells.last()).ok_or("no cells")?;
    check(
        cells.len() > 1 && cells.iter().flat_map(|(_, bytes)| bytes).eq(&bytes),
        "the cells are the message",
    )?;
    println!("a Write of {} bytes travels as {} cells, and arrives as one message", bytes.len(), cells.len());
    println!("first cell: {}", first.0);
    println!("last cell: {}", last.0);
    println!("sequence, length and CRC of every cell are right");
    drop(file);
    datagram_cell()
}

/// A datagram is a cell of its own.
fn datagram_cell() -> Result {
    let file = CaptureFile::new();
    let adapter = Adapter::open(file.config())?;
    let (cq, domain) = (adapter.completion_queue(64)?, adapter.protection_domain());
    let qp = domain.datagram_queue_pair(&cq).create()?;
    let to = Destination { address: qp.address_handle("127.0.0.1".parse()?)?, qpn: qp.qpn(), qkey: 0 };
    for id in 0..3 {
        qp.post_send(DatagramRequest::send_inline(id, b"hello", to))?;
        next(&cq)?.success()?;
    }
    drop((qp, cq, domain, adapter));
    let capture = Capture::open(&file.0)?;
    let headers = capture.datagrams.iter().map(|datagram| datagram.header);
    let cells: Vec<_> = headers.collect::<std::result::Result<_, _>>()?;
    let sequences: BTreeSet<u32> = cells.iter().map(|(header, _)| header.sequence).collect();
    check(cells.iter().all(|(_, len)| *len == 5), "the length of each cell")?;
    println!(
        "three datagrams are one cell each, with the sequence numbers {sequences:?}, their length and a CRC"
    );
    Ok(())
}

/// Requirement X8, and the immediate data of requirements P3 and P7.
pub(crate) fn immediate() -> Result {
    for (solicits, invalidates) in [(false, false), (true, false), (false, true), (true, true)] {
        let (client, server) = pair()?;
        let region = server.domain.allocate_region(vec![Buffer::new(8)?])?;
        server.qp.post_send(WorkRequest::register(1, &region, REMOTE))?;
        server.done()?;
        server.qp.post_receive(2, &[])?;
        check(!server.cq.arm(Arm::Solicited), "the queue is empty")?;
        let mut request = WorkRequest::send(3, &[]).immediate(0xfeed);
        if solicits {
            request = request.solicited();
        }
        if invalidates {
            request = request.invalidate(region.tag());
        }
        client.qp.post_send(request)?;
        client.done()?;
        let received = server.done()?;
        check(received.immediate == Some(0xfeed) && received.solicited == solicits, "data and event")?;
        check(received.invalidated == invalidates.then_some(region.tag()), "the tag")?;
        let event = if solicits { ", an event" } else { "" };
        let tag = if invalidates { ", a tag invalidated" } else { "" };
        println!("Send with Immediate: data {:#x}{event}{tag}", 0xfeed);
    }
    let (client, server) = pair()?;
    let pool = server.register(&[0; 32], REMOTE)?;
    server.qp.post_receive(1, &[])?;
    // Element 2 of pool 7 holds 5 bytes, in the 32 bits of document 001.
    let indication = 7 << 24 | 2 << 16 | 5;
    let source = client.register(b"hello", LOCAL)?;
    client.qp.post_send(WorkRequest::write_immediate(
        2,
        &[whole(&source)?],
        pool.remote_addr(16)?,
        indication,
    ))?;
    client.done()?;
    let received = server.done()?;
    check(
        received.opcode == Opcode::ReceiveWrite && received.immediate == Some(indication),
        "the indication",
    )?;
    let mut element = [0; 5];
    pool.read(16, &mut element)?;
    check(&element == b"hello", "the data is in the element")?;
    println!("Write with Immediate: pool 7, element 2, 5 bytes: hello");
    Ok(())
}

/// Requirement X4: between Ironwarp ends, a Read does not say where its data goes.
pub(crate) fn read_v2() -> Result {
    for private in [true, false] {
        let file = CaptureFile::new();
        let server = Config::default().private(private);
        let (client, server) = pair_with(file.config(), server, acknowledged)?;
        let (sink, source) =
            (client.register(&[0; 4], LOCAL)?, server.register(b"data", LOCAL | Access::REMOTE_READ)?);
        // The first message tells the client whether its peer understands Read V2.
        client.qp.post_receive(1, &[])?;
        server.qp.post_send(WorkRequest::send(1, &[]).unsignaled())?;
        client.done()?;
        client.qp.post_send(WorkRequest::read(2, &[whole(&sink)?], source.remote_addr(0)?))?;
        client.done()?;
        check(sink.to_vec()? == b"data", "the data arrives")?;
        drop((client, server));
        let sent = captured(&file.0, "Read")?;
        let (request, _) = sent.iter().find(|(text, _)| text.contains("Request")).ok_or("no request")?;
        let names_sink = request.contains("sink");
        check(names_sink != private, "Read V2 names no sink")?;
        let peer = if private { "an Ironwarp peer" } else { "any other peer" };
        println!("to {peer}: {request}");
    }
    println!("in both cases the memory for the data grants the peer no right");
    Ok(())
}

/// Requirement X5: data in the request itself needs no registration and can be overwritten at once.
pub(crate) fn inline() -> Result {
    let (client, server) = pair()?;
    let theirs = server.register(&[0; 8], REMOTE)?;
    let mut bytes = *b"original";
    let request = WorkRequest::write_inline(1, &bytes, theirs.remote_addr(0)?);
    bytes.fill(b'x');
    client.qp.post_send(request)?;
    client.done()?;
    check(theirs.to_vec()? == b"original" && bytes == [b'x'; 8], "the request has its own copy")?;
    println!(
        "the data is in the request: memory that is not registered, and overwritten before the request is posted"
    );
    println!("the server has: {}", String::from_utf8(theirs.to_vec()?)?);
    Ok(())
}

/// Requirement M11: the peers agree on how many Reads the responder keeps at a time. The requester keeps to it.
pub(crate) fn reads() -> Result {
    const READS: usize = 40;
    let shallow = Config::default().ird(2);
    let (client, server) = (End::new(Config::default(), acknowledged)?, End::new(shallow, acknowledged)?);
    let listener = server.adapter.listen("127.0.0.1:0".parse()?)?;
    client.qp.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    let incoming = listener.accept(TIMEOUT)?;
    incoming.accept(&server.qp, &AcceptOptions::new())?;
    let agreed = client.qp.wait_connected(TIMEOUT)?.agreed;
    check(agreed.ord == 2, "the server's depth")?;
    println!("the server keeps up to {} Reads, and says so when it accepts the connection", agreed.ord);
    let bytes = pattern(READS);
    let (sink, source) = (client.register(&[0; READS], LOCAL)?, server.register(&bytes, REMOTE)?);
    for at in 0..READS {
        client.qp.post_send(WorkRequest::read(
            at as u64,
            &[sink.slice(at..at + 1)?],
            source.remote_addr(at)?,
        ))?;
    }
    for at in 0..READS {
        check(client.done()?.wr_id == at as u64, "Reads complete in order")?;
    }
    check(sink.to_vec()? == bytes && server.qp.error().is_none(), "every byte, and no error")?;
    println!(
        "{READS} Reads are posted: the client sends them as the server has room, and all complete in order"
    );
    Ok(())
}
