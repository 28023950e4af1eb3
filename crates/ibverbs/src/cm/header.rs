//! What two Ironwarp ends say of queue pairs that a connection is not for: those that the program connects itself, and
//! connectionless ones. It stands before the program's private data, in a Request or Reply; `docs/wire.md` has it.
//!
//! Connections of queue pairs that ids manage have no such header: any iWARP peer understands them.

/// How long it is.
pub(super) const LEN: usize = 24;

const MAGIC: [u8; 4] = *b"IRWC";
const VERSION: u8 = 1;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The number of the queue pair that this is about.
    pub(super) qpn: u32,
    /// Its key, if it is connectionless.
    pub(super) qkey: u32,
    /// Why there is none, in the numbers of InfiniBand's service resolution; zero: there is.
    pub(super) status: u32,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) flow_control: bool,
    /// The queue pair takes its receives from a shared queue.
    pub(super) srq: bool,
}

/// What a header is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The connection only tells that two queue pairs belong together, which are connected by their numbers.
    Aside = 1,
    /// The number and key of a connectionless queue pair are asked for.
    Lookup = 2,
    /// The answer to that.
    Found = 3,
}

impl Header {
    pub(super) fn new(kind: Kind, qpn: u32) -> Self {
        Self {
            kind,
            qpn,
            qkey: 0,
            status: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            flow_control: true,
            srq: false,
        }
    }

    /// What private data begin with, and what is left for the program.
    pub(super) fn parse(data: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = data.split_at_checked(LEN)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..4] != MAGIC || head[4] != VERSION {
            return None;
        }
        let kind = match head[5] {
            1 => Kind::Aside,
            2 => Kind::Lookup,
            3 => Kind::Found,
            _ => return None,
        };
        let header = Self {
            kind,
            retry_count: head[6] & 7,
            rnr_retry_count: head[7] & 7,
            qpn: word(8) & 0xff_ffff,
            qkey: word(12),
            status: word(16),
            flow_control: head[20] & 1 != 0,
            srq: head[20] & 2 != 0,
        };
        Some((header, rest))
    }

    /// The header with the program's private data behind it.
    pub(super) fn with(&self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN + data.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.kind as u8, self.retry_count, self.rnr_retry_count]);
        out.extend_from_slice(&self.qpn.to_be_bytes());
        out.extend_from_slice(&self.qkey.to_be_bytes());
        out.extend_from_slice(&self.status.to_be_bytes());
        out.extend_from_slice(&[u8::from(self.flow_control) | u8::from(self.srq) << 1, 0, 0, 0]);
        out.extend_from_slice(data);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for kind in [Kind::Aside, Kind::Lookup, Kind::Found] {
            let header = Header {
                qkey: 0x0123_4567,
                status: 5,
                retry_count: 3,
                rnr_retry_count: 6,
                flow_control: false,
                srq: true,
                ..Header::new(kind, 0xab_cdef)
            };
            let bytes = header.with(b"behind");
            assert_eq!(bytes.len(), LEN + 6);
            assert_eq!(Header::parse(&bytes), Some((header, &b"behind"[..])));
        }
    }

    /// The table of docs/wire.md.
    #[test]
    fn its_bytes_are_where_the_document_says() {
        let header = Header {
            qkey: 0x11ee7,
            status: 3,
            retry_count: 5,
            srq: true,
            ..Header::new(Kind::Lookup, 0xb2_deff)
        };
        let bytes = b"IRWC\x01\x02\x05\x07\x00\xb2\xde\xff\x00\x01\x1e\xe7\x00\x00\x00\x03\x03\x00\x00\x00";
        assert_eq!(header.with(b""), bytes);
    }

    #[test]
    fn what_is_no_header_is_the_programs() {
        let bytes = Header::new(Kind::Aside, 7).with(b"");
        assert_eq!(Header::parse(&bytes[..LEN - 1]), None);
        for (at, wrong) in [(0, 0), (4, 2), (5, 0), (5, 9)] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            assert_eq!(Header::parse(&bytes), None, "byte {at}");
        }
    }
}
