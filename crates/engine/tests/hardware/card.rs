//! Two cards, as the Linux drivers make them behave during startup. Frames are parsed and built byte by byte,
//! independently of this project's own code: a driver must find what it looks for in our frames, where it
//! looks for it.

use ironwarp_wire::{ReadRequest, RemoteAddr, Tag};

/// The flags M, C, R and S of a startup frame (RFC 5044 §7.1.1, RFC 6581 §6).
pub(crate) const M: u8 = 0x80;
pub(crate) const C: u8 = 0x40;
pub(crate) const R: u8 = 0x20;
pub(crate) const S: u8 = 0x10;
/// Flags in the IRD word: the peer-to-peer model, and an empty Send as RTR.
pub(crate) const A: u16 = 0x8000;
pub(crate) const B: u16 = 0x4000;
/// Flags in the ORD word: an empty Write as RTR (the RFC's bit C), and an empty Read (bit D).
pub(crate) const WRITE: u16 = 0x8000;
pub(crate) const READ: u16 = 0x4000;
/// The bits of a depth; all ones mean that it is not negotiated.
pub(crate) const DEPTH: u16 = 0x3fff;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// A card, and the driver that sets up its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    pub(crate) name: &'static str,
    /// The latest MPA revision that it is configured to use.
    pub(crate) revision: u8,
    /// Number of remote Reads that it holds, and of its own outstanding Reads.
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// Maximum length of private data, including the word of revision 2.
    pub(crate) room: usize,
    /// Whether it wants markers in what it receives.
    pub(crate) markers: bool,
    /// The Read that it sends as RTR, with tags and offsets that were never given to it.
    pub(crate) rtr: ReadRequest,
    /// The forms of RTR that its Request offers.
    pub(crate) offers: u16,
}

/// Chelsio T4 to T6, with the driver's defaults: the peer-to-peer model, and a Read as RTR.
pub(crate) const CXGB4: Card = Card {
    name: "cxgb4",
    revision: 2,
    ird: 32,
    ord: 32,
    room: 256,
    markers: false,
    rtr: read(RemoteAddr { tag: Tag(1), offset: 1 }, RemoteAddr { tag: Tag(1), offset: 1 }),
    offers: READ,
};

/// Intel E810.
pub(crate) const IRDMA: Card = Card {
    name: "irdma",
    revision: 2,
    ird: 127,
    ord: 255,
    room: 512,
    markers: false,
    rtr: read(RemoteAddr { tag: Tag(0xabcd), offset: 0 }, RemoteAddr { tag: Tag(0x1234), offset: 0 }),
    offers: WRITE | READ,
};

pub(crate) const CARDS: [Card; 2] = [CXGB4, IRDMA];

const fn read(sink: RemoteAddr, source: RemoteAddr) -> ReadRequest {
    ReadRequest { msn: 1, sink, len: 0, source }
}

/// A startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) flags: u8,
    pub(crate) revision: u8,
    /// IRD and ORD with their flags, if the flag S is set.
    pub(crate) word: Option<(u16, u16)>,
    pub(crate) private_data: Vec<u8>,
}

/// Why a card refuses a connection, and what its peer sees of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// RST.
    Reset(&'static str),
    /// A Terminate of the MPA layer with this code, then the end.
    Terminate(u8),
    /// Nothing: its peer rejected the connection.
    Rejected(Vec<u8>),
}

impl Card {
    /// The Request that it sends.
    pub(crate) fn request(&self, private_data: &[u8]) -> Vec<u8> {
        let ord = self.ord.max(1); // for the RTR
        self.frame(REQUEST, (A | self.ird, self.offers | ord), private_data)
    }

    /// The Reply with which it accepts a Request.
    pub(crate) fn reply(&self, request: &Frame, private_data: &[u8]) -> Vec<u8> {
        let card = Self { revision: request.revision, ..*self };
        let (ird, ord) = request.word.unwrap_or_default();
        // cxgb4 names the form that it is configured with, irdma the Read if it was offered.
        let rtr = if self.name == CXGB4.name || ord & READ != 0 { READ } else { WRITE };
        let depths = (A | self.ird, rtr | self.ord.min(ird & DEPTH));
        card.frame(REPLY, depths, private_data)
    }

    /// The Reply with which it rejects a Request.
    pub(crate) fn rejection(&self, request: &Frame, private_data: &[u8]) -> Vec<u8> {
        let mut reply = self.reply(request, private_data);
        reply[16] |= R;
        reply
    }

    fn frame(&self, key: &[u8; 16], (ird, ord): (u16, u16), private_data: &[u8]) -> Vec<u8> {
        let word = [ird.to_be_bytes(), ord.to_be_bytes()].concat();
        let enhanced = self.revision == 2;
        let data = [if enhanced { &word[..] } else { &[] }, private_data].concat();
        let flags = C | if self.markers { M } else { 0 } | if enhanced { S } else { 0 };
        let len = u16::try_from(data.len()).unwrap().to_be_bytes();
        [key, &[flags, self.revision][..], &len, &data].concat()
    }

    /// Checks a Request as the driver does.
    pub(crate) fn check_request(&self, bytes: &[u8]) -> Result<Frame, Refused> {
        let request = self.check_frame(bytes, REQUEST)?;
        if self.name == IRDMA.name {
            irdma_negotiates(&request)?;
        }
        Ok(request)
    }

    /// Checks a Reply as the driver does.
    pub(crate) fn check_reply(&self, bytes: &[u8]) -> Result<Frame, Refused> {
        let reply = self.check_frame(bytes, REPLY)?;
        if self.name == IRDMA.name {
            // Checked before whether the Reply is a rejection.
            let ord = irdma_negotiates(&reply)?;
            let (ird, rtr) = reply.word.map_or((self.ird, 0), |(ird, rtr)| (ird & DEPTH, rtr));
            if ird == 0 && rtr & READ != 0 {
                return Err(Refused::Reset("a Read as RTR, and no room for one"));
            }
            if self.ird < ord {
                return Err(Refused::Reset("more Reads than this card holds"));
            }
        }
        if reply.flags & R != 0 {
            return Err(Refused::Rejected(reply.private_data));
        }
        if self.name == CXGB4.name && reply.revision == 2 {
            let (ird, ord) = reply.word.unwrap_or_default();
            // The bit of the Write is checked first; it is then the wrong form.
            if ird & A == 0 || ord & (WRITE | READ) != READ {
                return Err(Refused::Terminate(7));
            }
            if ord & DEPTH > self.ird {
                return Err(Refused::Terminate(6));
            }
        }
        Ok(reply)
    }

    /// The checks that both drivers make.
    fn check_frame(&self, bytes: &[u8], key: &[u8; 16]) -> Result<Frame, Refused> {
        let (head, data) = bytes.split_at(20);
        let len = usize::from(u16::from_be_bytes([head[18], head[19]]));
        let (flags, revision) = (head[16], head[17]);
        if head[..16] != key[..] {
            return Err(Refused::Reset("the key"));
        }
        if revision == 0 || revision > self.revision {
            return Err(Refused::Reset("the revision"));
        }
        if len > self.room {
            return Err(Refused::Reset("too much private data"));
        }
        // cxgb4: data after the frame in its segment. irdma: the rest of the frame in another segment.
        if data.len() != len {
            return Err(Refused::Reset("another length than it says"));
        }
        let (word, private_data) = data.split_at(if revision == 2 { 4.min(len) } else { 0 });
        let word = word.first_chunk().map(|&[a, b, c, d]| {
            assert_ne!(flags & S, 0, "a card assumes the word to be there without checking the flag");
            (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
        });
        Ok(Frame { flags, revision, word, private_data: private_data.to_vec() })
    }
}

/// The checks of irdma for any frame of revision 2, including a rejection. Returns the ORD.
fn irdma_negotiates(frame: &Frame) -> Result<u16, Refused> {
    let Some((ird, ord)) = frame.word else { return Ok(0) };
    if ird & A == 0 {
        return Err(Refused::Reset("not the peer-to-peer model"));
    }
    if ord & (WRITE | READ) == 0 {
        return Err(Refused::Reset("no RTR that it knows"));
    }
    Ok(ord & DEPTH)
}
