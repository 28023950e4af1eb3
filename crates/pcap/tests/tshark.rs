//! Wireshark's decoder understands every message that the codec emits.
//!
//! Not checked is what it cannot show: the fields of opcodes 8, 9 and F, which it does not know; and an untagged DDP header in a
//! Terminate of the type "remote protection", of which it shows only 14 bytes as the header, followed by as many bytes as a
//! Read Request has.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{opcode, temporary};
use ironwarp_pcap::sample::{self, Sample, Turn};
use ironwarp_pcap::{Encoder, OwnedStartup};
use ironwarp_testkit::tshark::tshark;
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::mpa::{Framing, Revision, Role};
use ironwarp_wire::{
    AtomicOp, AtomicRequest, Cause, Header, MpaFault, Offender, Operation, Protection, ReadRequest,
    RemoteAddr, SendWord, TaggedBuffer, Terminate, UntaggedBuffer,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;

fn sample_file(name: &str) -> PathBuf {
    let path = temporary(name);
    sample::write(File::create(&path).unwrap()).unwrap();
    path
}

/// Fields of tshark by name, with their values in hex. Values of repeated fields are concatenated.
type Fields = BTreeMap<String, String>;

#[test]
fn every_frame_is_decoded_correctly() {
    let file = sample_file("tshark-frames.pcap");
    let text = tshark(&file, &["-T", "pdml", "-J", "iwarp_mpa iwarp_ddp_rdmap _ws.malformed"]);
    assert!(!text.contains("_ws.malformed"));
    let found = frames(&text);
    let expected: Vec<_> = sample::samples().iter().flat_map(expected_frames).collect();
    for (index, (found, (name, expected))) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "frame {index}: {name}");
    }
    assert_eq!(found.len(), expected.len(), "tshark sees a different number of frames");
    assert_eq!(found.len(), 1298);
}

/// Returns the fields of every startup frame and FPDU in tshark's XML.
fn frames(pdml: &str) -> Vec<Fields> {
    let mut frames: Vec<Fields> = Vec::new();
    for line in pdml.lines() {
        let Some(name) = attribute(line, "field name") else { continue };
        if matches!(name, "iwarp_mpa.req" | "iwarp_mpa.rep" | "iwarp_mpa.fpdu") {
            frames.push(Fields::new());
        }
        let Some(frame) = frames.last_mut().filter(|_| name.starts_with("iwarp_")) else { continue };
        let value = &attribute(line, "value").unwrap_or_default().to_lowercase();
        if name.starts_with("iwarp_rdma.term_errcode_") {
            let (_, text) = attribute(line, "showname").unwrap().split_once(": ").unwrap();
            frame.insert("cause".into(), text.rsplit_once(" (").unwrap().0.into());
        }
        match name {
            // The two parts of a terminated header (see the top of this file).
            "iwarp_rdma.term_ddp_h" | "iwarp_rdma.term_rdma_h" => {
                frame.entry("terminated".into()).or_default().push_str(value);
            }
            "iwarp_mpa.crc_check" => {
                let good = line.contains("(Good CRC32)");
                frame.insert("crc".into(), if good { "good" } else { "bad" }.into());
            }
            "iwarp_mpa.crc" => _ = frame.insert("crc".into(), value.clone()),
            // Reassembled messages, not on the wire.
            _ if name.starts_with("iwarp_rdma.send.") => {}
            _ if value.is_empty() => {} // a heading
            _ => frame.entry(name.into()).or_default().push_str(value),
        }
    }
    // With markers, tshark computes the position of the padding from the sequence number instead of the first marker, and may
    // show adjacent bytes. The CRC covers them anyway.
    for frame in frames.iter_mut().filter(|frame| frame.contains_key("iwarp_mpa.marker_fpduptr")) {
        frame.entry("iwarp_mpa.pad".into()).and_modify(|pad| *pad = "0".repeat(pad.len()));
    }
    frames
}

fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

fn expected_frames(sample: &Sample) -> Vec<(String, Fields)> {
    let mut frames = vec![
        (format!("{}: Request", sample.name), startup(&sample.request)),
        (format!("{}: Reply", sample.name), startup(&sample.reply)),
    ];
    let mut positions = [0; 2];
    for Turn { from_initiator, fpdus } in &sample.turns {
        let framing = sample.framing(*from_initiator);
        let position = &mut positions[usize::from(*from_initiator)];
        for (header, payload) in fpdus {
            let mut fields = fields(header);
            mpa(&mut fields, header.encoded_len() + payload.len(), framing, position);
            frames.push((format!("{}: {header}, {} bytes", sample.name, payload.len()), fields));
        }
    }
    frames
}

fn set(fields: &mut Fields, name: &str, value: impl Into<String>) {
    fields.insert(name.to_owned(), value.into());
}

/// RFC 5044 §7.1.1, RFC 6581 §9. tshark shows the S bit of revision 2 as reserved, and its word as private data.
fn startup(startup: &OwnedStartup) -> Fields {
    let mut fields = Fields::new();
    let (key, rejected) = match startup.role {
        Role::Request => ("Req", false),
        Role::Reply { rejected } => ("Rep", rejected),
    };
    set(
        &mut fields,
        &format!("iwarp_mpa.key.{}", key.to_lowercase()),
        hex(format!("MPA ID {key} Frame").as_bytes()),
    );
    let bit = |on| if on { "1" } else { "0" };
    set(&mut fields, "iwarp_mpa.marker_flag", bit(startup.markers));
    set(&mut fields, "iwarp_mpa.crc_flag", bit(startup.crc));
    set(&mut fields, "iwarp_mpa.rej_flag", bit(rejected));
    let (revision, word) = match startup.revision {
        Revision::One => ("01", None),
        Revision::Two(word) => ("02", word),
    };
    set(&mut fields, "iwarp_mpa.rev", revision);
    set(&mut fields, "iwarp_mpa.res", if word.is_some() { "10" } else { "0" });
    let mut private_data = String::new();
    if let Some(word) = word {
        use ironwarp_wire::mpa::RtrSet;
        let rtr = word.rtr.unwrap_or(RtrSet::empty());
        let flag = |on, bit| if on { bit } else { 0_u16 };
        let ird = word.ird | flag(word.rtr.is_some(), 0x8000) | flag(rtr.contains(RtrSet::SEND), 0x4000);
        let ord =
            word.ord | flag(rtr.contains(RtrSet::WRITE), 0x8000) | flag(rtr.contains(RtrSet::READ), 0x4000);
        private_data = format!("{ird:04x}{ord:04x}");
    }
    private_data.push_str(&hex(&startup.private_data));
    set(&mut fields, "iwarp_mpa.pdlength", format!("{:04x}", private_data.len() / 2));
    if !private_data.is_empty() {
        set(&mut fields, "iwarp_mpa.privatedata", private_data);
    }
    fields
}

/// RFC 5044 §4: length, padding, CRC and markers of an FPDU that begins at `position` of its direction.
fn mpa(fields: &mut Fields, ulpdu: usize, framing: Framing, position: &mut usize) {
    set(fields, "iwarp_mpa.ulpdulength", format!("{ulpdu:04x}"));
    let padding = (4 - (2 + ulpdu) % 4) % 4;
    if padding > 0 {
        set(fields, "iwarp_mpa.pad", "00".repeat(padding));
    }
    set(fields, "crc", if framing.crc { "good" } else { "00000000" });
    let (mut pointers, mut start) = (Vec::new(), None);
    for _ in 0..(2 + ulpdu + padding + 4) / 4 {
        if framing.markers && position.is_multiple_of(512) {
            pointers.push(start.map_or(0, |start| *position - start));
            *position += 4;
        }
        start.get_or_insert(*position);
        *position += 4;
    }
    if !pointers.is_empty() {
        set(fields, "iwarp_mpa.marker_res", pointers.iter().map(|_| "0000").collect::<String>());
        set(
            fields,
            "iwarp_mpa.marker_fpduptr",
            pointers.iter().map(|it| format!("{it:04x}")).collect::<String>(),
        );
    }
}

/// RFC 5041 §4 and RFC 5040 §4.1: common fields, and those of each kind of message.
fn fields(header: &Header) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in
        [("iwarp_ddp.rsvd", "0"), ("iwarp_ddp.dv", "1"), ("iwarp_rdma.version", "1"), ("iwarp_rdma.rsv", "0")]
    {
        set(&mut fields, name, value);
    }
    set(&mut fields, "iwarp_rdma.opcode", format!("{:x}", opcode(header)));
    match header {
        Header::Write(segment) | Header::ReadResponse(segment) => {
            tagged(&mut fields, segment.last, segment.addr);
        }
        Header::Send(send) => {
            untagged(&mut fields, opcode(header), 0, send.msn, send.offset, send.last, word(send.word));
            match send.word {
                SendWord::Srq(number) => set(&mut fields, "iwarp_rdma.reserved", format!("{number:08x}")),
                SendWord::Invalidate(tag) => {
                    set(&mut fields, "iwarp_rdma.inval_stag", format!("{:08x}", tag.0));
                }
            }
        }
        Header::Immediate(it) => untagged(&mut fields, opcode(header), 0, it.msn, 0, true, it.srq),
        Header::ReadRequest(request) => {
            untagged(&mut fields, 1, 1, request.msn, 0, true, 0);
            set(&mut fields, "iwarp_rdma.reserved", "00000000");
            read_request(&mut fields, request);
        }
        Header::AtomicRequest(request) => {
            untagged(&mut fields, 0xa, 1, request.msn, 0, true, 0);
            atomic(&mut fields, request);
        }
        Header::AtomicResponse(response) => {
            untagged(&mut fields, 0xb, 3, response.msn, 0, true, 0);
            set(&mut fields, "iwarp_rdma.atomic.original_request_identifier", format!("{:08x}", response.id));
            let value = format!("{:016x}", response.original);
            set(&mut fields, "iwarp_rdma.atomic.original_remote_data_value", value);
        }
        Header::Terminate(it) => {
            untagged(&mut fields, 7, 2, 1, 0, true, 0);
            set(&mut fields, "iwarp_rdma.reserved", "00000000");
            terminate(&mut fields, it);
        }
        _ => private(&mut fields, header),
    }
    fields
}

/// Private messages are distinguished by their queue, and by two bits that RFC 5040 reserves.
fn private(fields: &mut Fields, header: &Header) {
    let bits = match header {
        Header::SendImmediate(message) => {
            let send = &message.send;
            let bits = u8::from(matches!(send.word, SendWord::Invalidate(_))) + 2 * u8::from(send.solicited);
            untagged(fields, 0xf | bits << 4, 0, send.msn, send.offset, send.last, word(send.word));
            bits
        }
        Header::ReadV2Request(request) => {
            untagged(fields, 0xf, 1, request.msn, 0, true, 0);
            0
        }
        Header::ReadV2Response(response) => {
            untagged(fields, 0x1f, 0x8000_0001, response.msn, response.offset, response.last, 0);
            1
        }
        other => panic!("unexpected {other}"),
    };
    set(fields, "iwarp_rdma.rsv", bits.to_string());
}

fn word(word: SendWord) -> u32 {
    match word {
        SendWord::Srq(number) => number,
        SendWord::Invalidate(tag) => tag.0,
    }
}

fn tagged(fields: &mut Fields, last: bool, addr: RemoteAddr) {
    set(fields, "iwarp_ddp.tagged_flag", "1");
    set(fields, "iwarp_ddp.last_flag", if last { "1" } else { "0" });
    set(fields, "iwarp_ddp.stag", format!("{:08x}", addr.tag.0));
    set(fields, "iwarp_ddp.tagged_offset", format!("{:016x}", addr.offset));
}

fn untagged(fields: &mut Fields, control: u8, queue: u32, msn: u32, offset: u32, last: bool, word: u32) {
    set(fields, "iwarp_ddp.tagged_flag", "0");
    set(fields, "iwarp_ddp.last_flag", if last { "1" } else { "0" });
    set(fields, "iwarp_ddp.rsvdulp", format!("{:02x}{word:08x}", 0x40 | control));
    set(fields, "iwarp_ddp.qn", format!("{queue:08x}"));
    set(fields, "iwarp_ddp.msn", format!("{msn:08x}"));
    set(fields, "iwarp_ddp.mo", format!("{offset:08x}"));
}

fn read_request(fields: &mut Fields, request: &ReadRequest) {
    set(fields, "iwarp_rdma.sinkstag", format!("{:08x}", request.sink.tag.0));
    set(fields, "iwarp_rdma.sinkto", format!("{:016x}", request.sink.offset));
    set(fields, "iwarp_rdma.rdmardsz", format!("{:08x}", request.len));
    set(fields, "iwarp_rdma.srcstag", format!("{:08x}", request.source.tag.0));
    set(fields, "iwarp_rdma.srcto", format!("{:016x}", request.source.offset));
}

/// RFC 7306 §5.2.1.
fn atomic(fields: &mut Fields, request: &AtomicRequest) {
    let mut set = |name: &str, value: String| set(fields, &format!("iwarp_rdma.atomic.{name}"), value);
    set("reserved", "0".into());
    set("request_identifier", format!("{:08x}", request.id));
    set("remote_stag", format!("{:08x}", request.target.tag.0));
    set("remote_tagged_offset", format!("{:016x}", request.target.offset));
    let (code, names, data, data_mask, compare, compare_mask) = match request.op {
        AtomicOp::FetchAdd { add, mask } => (0, ["add_data", "add_mask"], add, mask, 0, u64::MAX),
        AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } => {
            (2, ["swap_data", "swap_mask"], swap, swap_mask, compare, compare_mask)
        }
    };
    set("opcode", format!("{code:x}"));
    set(names[0], format!("{data:016x}"));
    set(names[1], format!("{data_mask:016x}"));
    set("compare_data", format!("{compare:016x}"));
    set("compare_mask", format!("{compare_mask:016x}"));
}

/// RFC 5040 §4.8. The names of tshark's fields depend on layer and type.
fn terminate(fields: &mut Fields, terminate: &Terminate) {
    let (etype, code) = match terminate.cause {
        Cause::LocalCatastrophic => ("etype_rdma", "errcode"),
        Cause::Protection(_) | Cause::Operation(_) => ("etype_rdma", "errcode_rdma"),
        Cause::DdpCatastrophic => ("etype_ddp", "errcode"),
        Cause::TaggedBuffer(_) => ("etype_ddp", "errcode_ddp_tagged"),
        Cause::UntaggedBuffer(_) => ("etype_ddp", "errcode_ddp_untagged"),
        Cause::Mpa(_) => ("etype_llp", "errcode_llp"),
        Cause::Other { .. } => panic!("the samples have known causes"),
    };
    let (layer, kind, number) = terminate.cause.to_wire();
    let mut set = |name: &str, value: String| set(fields, name, value);
    set("iwarp_rdma.term_layer", format!("{layer:x}"));
    set(&format!("iwarp_rdma.term_{etype}"), format!("{kind:x}"));
    set(&format!("iwarp_rdma.term_{code}"), format!("{number:02x}"));
    if let Some(text) = cause_text(terminate.cause) {
        set("cause", text.into());
    }
    set("iwarp_rdma.term_rsvd", "0".into());
    let Offender { length, header, read } = terminate.offender;
    let bit = |on: bool| u8::from(on).to_string();
    set("iwarp_rdma.term_hdrct_m", bit(length.is_some()));
    set("iwarp_rdma.hdrct_d", bit(header.is_some()));
    set("iwarp_rdma.hdrct_r", bit(read.is_some()));
    if let Some(length) = length {
        set("iwarp_rdma.term_ddp_seg_len", format!("{length:04x}"));
    }
    if let Some(header) = header {
        set("terminated", terminated(terminate.cause, &header, read.as_ref()));
    }
}

/// Returns tshark's description of a cause, to verify our numbers independently.
fn cause_text(cause: Cause) -> Option<&'static str> {
    Some(match cause {
        Cause::LocalCatastrophic | Cause::DdpCatastrophic => return None,
        Cause::Protection(Protection::Tag) | Cause::TaggedBuffer(TaggedBuffer::Tag) => "Invalid STag",
        Cause::Protection(Protection::Bounds) | Cause::TaggedBuffer(TaggedBuffer::Bounds) => {
            "Base or bounds violation"
        }
        Cause::Protection(Protection::Access) => "Access rights violation",
        Cause::Protection(Protection::Stream) => "STag not associated with RDMAP Stream",
        Cause::Protection(Protection::Wrap) | Cause::TaggedBuffer(TaggedBuffer::Wrap) => "TO wrap",
        Cause::Protection(Protection::Invalidate) | Cause::Operation(Operation::Invalidate) => {
            "STag cannot be Invalidated"
        }
        Cause::Protection(Protection::Unspecified) | Cause::Operation(Operation::Unspecified) => {
            "Unspecific Error"
        }
        Cause::Operation(Operation::Version) => "Invalid RDMAP version",
        Cause::Operation(Operation::Opcode) => "Unexpected OpCode",
        Cause::Operation(Operation::StreamCatastrophic) => "Catastrophic error, localized to RDMAP Stream",
        Cause::Operation(Operation::GlobalCatastrophic) => "Catastrophic error, global",
        Cause::TaggedBuffer(TaggedBuffer::Stream) => "STag not associated with DDP Stream",
        Cause::TaggedBuffer(TaggedBuffer::Version) | Cause::UntaggedBuffer(UntaggedBuffer::Version) => {
            "Invalid DDP version"
        }
        Cause::UntaggedBuffer(UntaggedBuffer::Queue) => "Invalid QN",
        Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer) => "Invalid MSN - no buffer available",
        Cause::UntaggedBuffer(UntaggedBuffer::Sequence) => "Invalid MSN - MSN range is not valid",
        Cause::UntaggedBuffer(UntaggedBuffer::Offset) => "Invalid MO",
        Cause::UntaggedBuffer(UntaggedBuffer::TooLong) => "DDP Message too long for available buffer",
        Cause::Mpa(MpaFault::ConnectionLost) => "TCP connection closed, terminated or lost",
        Cause::Mpa(MpaFault::Crc) => "MPA CRC Error",
        Cause::Mpa(MpaFault::Length) => "MPA Marker and ULPDU Length field mismatch",
        Cause::Mpa(MpaFault::Startup) => "Invalid MPA Request Frame or MPA Response Frame",
        Cause::Mpa(MpaFault::LocalCatastrophic) => "Local Catastrophic Error",
        Cause::Mpa(MpaFault::InsufficientIrd) => "Insufficient IRD Resources",
        Cause::Mpa(MpaFault::NoRtr) => "No Matching RTR Option",
        Cause::Other { .. } => panic!("the samples have known causes"),
    })
}

/// Returns the part of the terminated header that tshark shows.
fn terminated(cause: Cause, header: &DdpHeader, read: Option<&ReadRequest>) -> String {
    let mut text = match header {
        DdpHeader::Tagged(ddp) => {
            let RemoteAddr { tag, offset } = ddp.addr;
            format!("{:02x}{:02x}{:08x}{offset:016x}", ddp.control, ddp.ulp_control, tag.0)
        }
        DdpHeader::Untagged(ddp) => format!(
            "{:02x}{:02x}{:08x}{:08x}{:08x}{:08x}",
            ddp.control, ddp.ulp_control, ddp.ulp_word, ddp.queue, ddp.msn, ddp.offset
        ),
    };
    if let Some(ReadRequest { sink, len, source, .. }) = read {
        text += &format!("{:08x}{:016x}{len:08x}", sink.tag.0, sink.offset);
        text += &format!("{:08x}{:016x}", source.tag.0, source.offset);
    }
    if matches!(cause, Cause::Protection(_)) && matches!(header, DdpHeader::Untagged(_)) {
        let shown = 14 + if read.is_some() { 28 } else { 0 };
        text.truncate(2 * shown);
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checksums are verified here, too.
#[test]
fn tshark_reports_nothing_else() {
    let file = sample_file("tshark-expert.pcap");
    let text = tshark(
        &file,
        &["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-q", "-z", "expert,note"],
    );
    let remarks: BTreeMap<&str, usize> = text.lines().filter_map(remark).collect();
    let startups: Vec<_> = sample::samples().into_iter().flat_map(|it| [it.request, it.reply]).collect();
    let count = |which: fn(&OwnedStartup) -> bool| startups.iter().filter(|it| which(it)).count();
    let expected = [
        // tshark implements RFC 5044, but not RFC 6581.
        (
            "Res field is NOT set to zero as required by RFC 5044",
            count(|it| matches!(it.revision, Revision::Two(Some(_)))),
        ),
        ("Rev field is NOT set to one as required by RFC 5044", count(|it| it.revision != Revision::One)),
        // Reported twice for the same frame.
        ("Reject bit set by Responder", 2 * count(|it| it.role == Role::Reply { rejected: true })),
        ("This frame initiates the connection closing", startups.len() / 2),
        ("This frame undergoes the connection closing", startups.len() / 2),
    ];
    assert_eq!(remarks, expected.into());
}

/// A line of the table: frequency, group, protocol, summary.
fn remark(line: &str) -> Option<(&str, usize)> {
    let (count, rest) = line.trim_start().split_once(' ')?;
    let count = count.parse().ok()?;
    let (_group, rest) = rest.trim_start().split_once(' ')?;
    let (_protocol, summary) = rest.trim_start().split_once(' ')?;
    Some((summary.trim(), count))
}

/// Verifies that these tests detect errors.
#[test]
fn a_wrong_crc_is_seen() {
    let mut file = sample::write(Vec::new()).unwrap();
    let sample = &sample::samples()[0];
    let (header, payload) = &sample.turns[0].fpdus[3];
    let fpdu = Encoder::new(sample.framing(true)).fpdu(header, payload).unwrap();
    let at = file.windows(fpdu.len()).position(|it| it == fpdu).unwrap();
    file[at + 12] ^= 1;
    let path = temporary("tshark-wrong.pcap");
    std::fs::write(&path, file).unwrap();
    let text = tshark(&path, &["-T", "pdml", "-J", "iwarp_mpa", "-Y", "tcp.stream == 0"]);
    let bad: Vec<_> =
        frames(&text).into_iter().filter(|it| it.get("crc").is_some_and(|it| it == "bad")).collect();
    assert_eq!(bad.len(), 1);
}
