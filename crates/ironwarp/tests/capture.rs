//! The setting `pcap`: an adapter writes its own traffic to a file, which `ironwarp-pcap` and Wireshark's dissector
//! must accept.
#![allow(clippy::unwrap_used, reason = "a test may stop")]

use ironwarp::completion::Opcode;
use ironwarp::datagram::{DatagramRequest, Destination};
use ironwarp::memory::Buffer;
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp::{Adapter, Config};
use ironwarp_pcap::{Capture, Conversation, Frame, Kind};
use ironwarp_testkit::native::{ALL, Case, Completions, End, SOON, pair_with, pattern};
use ironwarp_testkit::tshark::{ERRORS, tshark};
use ironwarp_wire::Header;
use std::path::{Path, PathBuf};

const V4: Case = Case { at: "127.0.0.1:0", completes: Completes::WhenAcknowledged };
const V6: Case = Case { at: "[::1]:0", completes: Completes::WhenAcknowledged };

const SIZES: [usize; 6] = [0, 1, 100, 1460, 5000, 200_000];

/// Returns the path of a file that does not exist yet.
fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_file(&path);
    path
}

fn into(path: &Path) -> Config {
    Config::default().pcap(path.into())
}

/// Exchanges Sends, Writes and Reads of all sizes from the client, then a Send from the server, then the client
/// disconnects.
fn talk(client: &End, server: &End) {
    let longest = SIZES[SIZES.len() - 1];
    let (here, there) = (client.region(&pattern(1, longest), ALL), server.region(&pattern(2, longest), ALL));
    let addr = there.remote_addr(0).unwrap();
    for size in SIZES {
        server.qp.post_receive(7, &[there.slice(..size).unwrap()]).unwrap();
        let mine = || here.slice(..size).unwrap();
        client.qp.post_send(WorkRequest::send(1, &[mine()])).unwrap();
        client.done(Opcode::Send, 1);
        server.done(Opcode::Receive, 7);
        client.qp.post_send(WorkRequest::write(2, &[mine()], addr)).unwrap();
        client.done(Opcode::Write, 2);
        client.qp.post_send(WorkRequest::read(3, &[mine()], addr)).unwrap();
        client.done(Opcode::Read, 3);
    }
    client.qp.post_receive(8, &[here.slice(..9).unwrap()]).unwrap();
    server.qp.post_send(WorkRequest::send(4, &[there.slice(..9).unwrap()])).unwrap();
    server.done(Opcode::Send, 4);
    client.done(Opcode::Receive, 8);
    client.qp.disconnect();
    assert!(client.qp.wait_closed(SOON) && server.qp.wait_closed(SOON));
}

/// Returns the concatenated payload of the messages of one kind and direction.
fn payload_of(conversation: &Conversation, from_initiator: bool, kind: fn(&Header) -> bool) -> Vec<u8> {
    let frames = conversation.frames.iter().filter(|frame| frame.from_initiator == from_initiator);
    let payloads = frames.filter_map(|frame| match &frame.kind {
        Kind::Fpdu { fpdu, payload } if kind(&fpdu.header) => Some(&payload[..]),
        _ => None,
    });
    payloads.collect::<Vec<_>>().concat()
}

fn expected(seed: u8) -> Vec<u8> {
    SIZES.iter().flat_map(|size| pattern(seed, *size)).collect()
}

/// Checks that a capture contains the whole conversation, and nothing else. Returns the capture.
fn check_contents(path: &Path) -> Capture {
    let capture = Capture::open(path).unwrap();
    assert!(!capture.cut_off);
    let [conversation] = &capture.conversations[..] else { panic!("{:?}", capture.conversations.len()) };
    assert_eq!(capture.others, 0);
    assert_eq!(conversation.problems, []);
    assert!(conversation.closed.is_some());
    let is_send = |header: &Header| matches!(header, Header::Send(_));
    let is_write = |header: &Header| matches!(header, Header::Write(_));
    let is_answer = |header: &Header| matches!(header, Header::ReadResponse(_) | Header::ReadV2Response(_));
    assert_eq!(payload_of(conversation, true, is_send), expected(1));
    assert_eq!(payload_of(conversation, true, is_write), expected(1));
    // What the Reads return is what the Writes wrote.
    assert_eq!(payload_of(conversation, false, is_answer), expected(1));
    assert_eq!(payload_of(conversation, false, is_send), pattern(1, 9));
    capture
}

fn check_with_tshark(path: &Path, fpdus: usize) {
    let errors = tshark(path, &["-Y", ERRORS]);
    assert_eq!(errors, "");
    let seen = tshark(path, &["-Y", "iwarp_ddp_rdmap", "-T", "fields", "-e", "iwarp_rdma.opcode"]);
    assert_eq!(seen.split([',', '\n']).filter(|it| !it.is_empty()).count(), fpdus);
    let crcs = tshark(path, &["-Y", "iwarp_mpa.crc_check", "-O", "iwarp_mpa"]);
    assert!(crcs.contains("(Good CRC32)") && !crcs.contains("Bad CRC32"));
}

/// Returns the number of Reads that were sent as Read V2, a private extension (requirement X4).
fn reads_v2(capture: &Capture) -> usize {
    let is = |frame: &Frame| matches!(&frame.kind, Kind::Fpdu { fpdu, .. } if matches!(fpdu.header, Header::ReadV2Request(_)));
    capture.frames().filter(|(_, frame)| is(frame)).count()
}

/// Two Ironwarp ends use Read V2 once they recognise each other, unless this or all private extensions are disabled at
/// one of them. The setting of another extension does not matter.
#[test]
fn read_v2_is_used_between_ironwarp_ends_only() {
    type Set = fn(Config, bool) -> Config;
    let settings: [(&str, Set); 3] = [
        ("private", Config::private),
        ("read_v2", Config::read_v2),
        ("send_immediate", Config::send_immediate),
    ];
    for (name, set) in settings {
        for (ours, theirs) in [(true, true), (true, false), (false, true)] {
            let path = file(&format!("capture-{name}-{ours}-{theirs}.pcap"));
            let (client, server) = (set(into(&path), ours), set(Config::default(), theirs));
            let (client, server) = pair_with(V4, client, server);
            talk(&client, &server);
            drop((client, server));
            let used = reads_v2(&check_contents(&path)) > 0;
            assert_eq!(used, ours && theirs || name == "send_immediate", "{name}: {ours}, {theirs}");
        }
    }
}

fn fpdus(capture: &Capture) -> usize {
    capture.frames().filter(|(_, frame)| matches!(frame.kind, Kind::Fpdu { .. })).count()
}

#[test]
fn either_end_captures_the_whole_conversation() {
    for (case, name) in [(V4, "v4"), (V6, "v6")] {
        for by_client in [true, false] {
            let path = file(&format!("capture-{name}-{by_client}.pcap"));
            let (captured, other) = (into(&path), Config::default());
            let (client, server) = if by_client { (captured, other) } else { (other, captured) };
            let (client, server) = pair_with(case, client, server);
            talk(&client, &server);
            drop((client, server));
            let capture = check_contents(&path);
            check_with_tshark(&path, fpdus(&capture));
            // Wireshark flags no packet: sequence numbers and acknowledgements match.
            assert_eq!(tshark(&path, &["-Y", "tcp.analysis.flags && !tcp.analysis.window_full"]), "");
        }
    }
}

/// Two processes of one machine may share a file. Each packet is captured twice, and counted once.
#[test]
fn both_ends_share_a_file() {
    let path = file("capture-both.pcap");
    let (client, server) = pair_with(V4, into(&path), into(&path));
    talk(&client, &server);
    drop((client, server));
    let capture = check_contents(&path);
    assert_eq!(tshark(&path, &["-Y", ERRORS]), "");
    let once = tshark(&path, &["-Y", "iwarp_ddp_rdmap && !tcp.analysis.retransmission"]).lines().count();
    assert_eq!(once, fpdus(&capture));
}

#[test]
fn markers_are_captured_as_they_are() {
    let path = file("capture-markers.pcap");
    let server = Config::default().markers(true);
    let (client, server) = pair_with(V4, into(&path), server);
    talk(&client, &server);
    drop((client, server));
    let capture = check_contents(&path);
    assert!(
        capture.conversations[0].from_initiator.markers && !capture.conversations[0].from_responder.markers
    );
}

#[test]
fn a_file_ends_at_its_limit_and_the_program_goes_on() {
    let path = file("capture-limit.pcap");
    let config = into(&path).pcap_limit(50_000);
    let (client, server) = pair_with(V4, config, Config::default());
    talk(&client, &server);
    drop((client, server));
    let len = std::fs::metadata(&path).unwrap().len();
    assert!((10_000..=50_000).contains(&len), "{len}");
    let capture = Capture::open(&path).unwrap();
    assert!(!capture.cut_off && capture.conversations.len() == 1);
}

#[test]
fn a_capture_file_that_cannot_be_written_does_not_stop_the_program() {
    let foreign = file("capture-foreign.pcap");
    std::fs::write(&foreign, "dear diary, this is the beginning of a long text").unwrap();
    for path in [Path::new("/no/such/directory/x.pcap"), &foreign] {
        let (client, server) = pair_with(V4, into(path), Config::default());
        talk(&client, &server);
    }
    assert!(
        std::fs::read_to_string(&foreign).unwrap().ends_with("long text"),
        "an existing file of another format is not changed"
    );
}

/// Later connections and adapters append to the file.
#[test]
fn captures_are_appended_to_an_existing_file() {
    let path = file("capture-stays.pcap");
    for case in [V4, V6, V4] {
        let (client, server) = pair_with(case, into(&path), Config::default());
        talk(&client, &server);
    }
    let capture = Capture::open(&path).unwrap();
    assert_eq!(capture.conversations.len(), 3);
    assert!(capture.conversations.iter().all(|it| it.problems.is_empty() && it.closed.is_some()));
    check_with_tshark(&path, fpdus(&capture));
}

#[test]
fn a_captured_reset_ends_its_connection() {
    let path = file("capture-cut.pcap");
    let config = into(&path).faults("cut@1".parse().unwrap());
    let (client, server) = pair_with(V4, config, Config::default());
    let region = client.region(&pattern(1, 9), ALL);
    client.qp.post_send(WorkRequest::send(1, &[region.slice(..9).unwrap()])).unwrap();
    assert_ne!(client.next().status, ironwarp::completion::Status::Success);
    drop((client, server));
    assert_eq!(tshark(&path, &["-Y", "tcp.flags.reset == 1"]).lines().count(), 1);
    assert_eq!(tshark(&path, &["-Y", "tcp.flags.fin == 1"]), "");
}

#[test]
fn datagrams_are_captured_where_they_are_sent_and_where_they_arrive() {
    let path = file("capture-datagrams.pcap");
    let adapter = Adapter::open(into(&path)).unwrap();
    let (cq, domain) = (adapter.completion_queue(16).unwrap(), adapter.protection_domain());
    let region = domain.register(Buffer::copy_of(&pattern(1, 4096)).unwrap(), ALL).unwrap();
    let [sender, receiver] = [1, 2].map(|_| domain.datagram_queue_pair(&cq).qkey(7).create().unwrap());
    for ip in ["127.0.0.1", "::1"] {
        receiver.post_receive(5, &[region.slice(..1000).unwrap()]).unwrap();
        let address = sender.address_handle(ip.parse().unwrap()).unwrap();
        let destination = Destination { address, qpn: receiver.qpn(), qkey: 7 };
        let request = DatagramRequest::send(6, &[region.slice(..100).unwrap()], destination);
        sender.post_send(request).unwrap();
        for _ in 0..2 {
            cq.wait(SOON).unwrap().success().unwrap();
        }
    }
    drop((sender, receiver));
    let errors = tshark(&path, &["-o", "udp.check_checksum:TRUE", "-Y", ERRORS]);
    assert_eq!(errors, "");
    let seen =
        tshark(&path, &["-Y", "udp", "-T", "fields", "-e", "ip.dst", "-e", "ipv6.dst", "-e", "udp.dstport"]);
    let port = seen.lines().next().and_then(|line| line.rsplit('\t').next()).unwrap();
    let [v4, v6] = [format!("127.0.0.1\t\t{port}"), format!("\t::1\t{port}")];
    assert_eq!(seen.lines().collect::<Vec<_>>(), [&v4, &v4, &v6, &v6]);
}
