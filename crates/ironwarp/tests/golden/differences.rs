//! Every difference between what siw sent and what Ironwarp sends in the same situation, with its reason. Tags and
//! addresses are not compared, because they differ each time. `main.rs` handles the segmentation of long messages.

/// A field with a different value.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Difference {
    /// The captures that have the difference.
    pub(crate) files: &'static [&'static str],
    /// The kind of frame.
    pub(crate) frame: &'static str,
    pub(crate) field: &'static str,
    pub(crate) siw: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) why: &'static str,
}

/// Captures with every operation and violation.
const GOLD: &[&str] = &["siw-gold.pcap", "siw-gold-p2p-crc.pcap"];
/// Peer-to-peer captures.
const P2P: &[&str] = &["siw-gold-p2p-crc.pcap", "siw-rping-p2pclient.pcap"];
const P2P_GOLD: &[&str] = &["siw-gold-p2p-crc.pcap"];
/// The server was built to require CRCs.
const SERVER_CRC: &[&str] = &["siw-rping-p2pserver.pcap"];

const ALL_RTRS: &str = "RFC 6581 §9.2: a responder lists the RTRs that it accepts. siw lists only the one that it prefers; cxgb4 and \
    irdma send a Read, so ours includes it";
const INVALIDATE: &str =
    "siw's user library sends the wrong member of the work request, which is 0; ours is the tag";
const EMPTY_WRITE: &str = "the address of an empty Write is not checked (RFC 5041 §5.2). Between Ironwarp ends it carries the \
    signal, so it is zero in Writes of programs";
const REQUIRED_CRC: &str = "as a responder, a siw that requires CRCs does not request them: it returns the initiator's flag. RFC 5044 \
    §7.1.1: an end that requires CRCs sets the flag";
const SWAPPED: &str = "RFC 5040 §4.8: the layer comes first, and M, D and R are the top bits. siw has them in reverse order on \
    little-endian machines";
const SEGMENT_LENGTH: &str =
    "RFC 5040 §4.8: the length of the segment including its header. siw counts the payload only";
const TOO_LONG: &str = "RFC 5041 §7.2 has a code for a message that is too long for its buffer (5). siw reports a missing \
    buffer (2)";
const MSN: &str = "RFC 5040 §4.8: the header of the segment as received. siw rebuilds it, with the size in place of the MSN";

macro_rules! differences {
    ($($files:ident $frame:literal $field:literal: $siw:literal => $ours:literal, $why:ident;)*) => {
        &[$(Difference { files: $files, frame: $frame, field: $field, siw: $siw, ours: $ours, why: $why },)*]
    };
}

pub(crate) const DIFFERENCES: &[Difference] = differences! {
    P2P "MPA Reply" "RTR Read": "0" => "1", ALL_RTRS;
    P2P_GOLD "MPA Reject" "RTR Read": "0" => "1", ALL_RTRS;
    GOLD "Send Invalidate" "word": "0" => "a tag", INVALIDATE;
    GOLD "Send SE Invalidate" "word": "0" => "a tag", INVALIDATE;
    GOLD "Write" "place": "tag 0+0" => "nothing+0x0", EMPTY_WRITE;
    SERVER_CRC "MPA Reply" "C": "0" => "1", REQUIRED_CRC;
    SERVER_CRC "Send" "CRC": "zero" => "there", REQUIRED_CRC;
    SERVER_CRC "Write" "CRC": "zero" => "there", REQUIRED_CRC;
    SERVER_CRC "Read Request" "CRC": "zero" => "there", REQUIRED_CRC;
    SERVER_CRC "Read Response" "CRC": "zero" => "there", REQUIRED_CRC;
    GOLD "Terminate" "header bits": "03" => "c0", SWAPPED;
    GOLD "Terminate" "header bits": "07" => "e0", SWAPPED;
    GOLD "Terminate" "layer and type": "10" => "01", SWAPPED;
    GOLD "Terminate" "layer and type": "21" => "12", SWAPPED;
    GOLD "Terminate" "segment length": "64" => "78", SEGMENT_LENGTH;
    GOLD "Terminate" "segment length": "0" => "46", SEGMENT_LENGTH;
    GOLD "Terminate" "segment length": "1100" => "1118", SEGMENT_LENGTH;
    GOLD "Terminate" "code": "02" => "05", TOO_LONG;
    GOLD "Terminate" "its MSN": "64" => "1", MSN;
};
