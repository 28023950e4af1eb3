//! Shows Ironwarp's datagrams in a capture (requirement P3).

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use ironwarp_pcap::{Capture, CaptureWriter, show};
use ironwarp_wire::private::{Datagram, DatagramAnswer, DatagramKind, Unreadable};
use std::net::SocketAddr;
use std::time::Duration;

#[test]
fn datagrams_are_shown_with_sequence_number_length_and_crc() {
    let (one, other): (SocketAddr, SocketAddr) =
        ("10.0.0.1:4000".parse().unwrap(), "10.0.0.2:4098".parse().unwrap());
    let header = Datagram {
        kind: DatagramKind::Message,
        destination: 0x10_02ff,
        source: 0x0f_a0ff,
        qkey: 7,
        sequence: 41,
        solicited: true,
        immediate: Some(9),
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        service_level: 0,
    };
    let answer = DatagramKind::Answer { session: 0xabc, answer: DatagramAnswer::Placed };
    let answer = Datagram { kind: answer, solicited: false, immediate: None, ..header };
    let whole = [&header.emit(b"hello").unwrap()[..], b"hello"].concat();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    let bytes: [&[u8]; 4] = [&whole, b"of another program", &damaged, &answer.emit(b"").unwrap()];
    for (at, bytes) in (0..).zip(bytes) {
        let ends = if at == 3 { (other, one) } else { (one, other) };
        writer.datagram(Duration::from_secs(at), ends, bytes).unwrap();
    }
    let capture = Capture::parse(&writer.into_inner()).unwrap();
    let headers: Vec<_> = capture.datagrams.iter().map(|it| it.header).collect();
    assert_eq!(headers, [Ok((header, 5)), Err(Unreadable::Damaged), Ok((answer, 0))]);
    let mut text = Vec::new();
    show::show(&capture, &mut text).unwrap();
    let expected = "
    1    0.000000  10.0.0.1:4000 → 10.0.0.2:4098  Datagram SE, from 0x0fa0ff to 0x1002ff, qkey 0x7, sequence 41, data 0x9, 5 bytes, CRC ok
    3    2.000000  10.0.0.1:4000 → 10.0.0.2:4098  !! damaged datagram
    4    3.000000  10.0.0.2:4098 → 10.0.0.1:4000  Answer of session 0xabc: placed, from 0x0fa0ff to 0x1002ff, qkey 0x7, sequence 41, 0 bytes, CRC ok
no frames on no connections; no problems; 3 datagrams
";
    assert_eq!(format!("\n{}", String::from_utf8(text).unwrap()), expected);
}
