//! Parses netlink messages and attributes (netlink(7)), without trusting the lengths they state.
//!
//! Numbers are in the byte order of the host. Messages and attributes start at multiples of four bytes.

use std::io;

/// Size of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Size of `struct rtattr`.
const ATTRIBUTE: usize = 4;
/// Mask for the kind of an attribute in its type field; the other bits are flags (`NLA_TYPE_MASK`).
const KIND: u16 = 0x3fff;

/// Kind of the message that ends a dump.
pub(crate) const DONE: u16 = bits(libc::NLMSG_DONE);
/// Kind of a message that reports an error.
pub(crate) const ERROR: u16 = bits(libc::NLMSG_ERROR);

/// Converts a constant that the C headers declare wider than the 16-bit field that holds it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the field has 16 bits")]
pub(crate) const fn bits(constant: i32) -> u16 {
    constant as u16
}

/// A netlink message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// The type, such as `RTM_NEWLINK`.
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    /// The bytes after the header.
    pub(crate) body: &'a [u8],
}

/// Iterates over the messages of a datagram. Ends at a message whose length is invalid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let message = self.0.get(..len)?;
        let (kind, flags, body) = (u16_at(message, 4)?, u16_at(message, 6)?, message.get(HEADER..)?);
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default(); // the last one may lack its padding
        Some(Message { kind, flags, body })
    }
}

/// Iterates over the attributes of a message: kind and value of each. Ends at an attribute whose length is invalid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the attributes that follow the first `offset` bytes of a message's body.
    pub(crate) fn behind(body: &'a [u8], offset: usize) -> Self {
        Self(body.get(offset..).unwrap_or_default())
    }

    /// Returns the value of the first attribute of this kind.
    pub(crate) fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find_map(|(found, value)| (found == kind).then_some(value))
    }

    /// Returns the value of the first attribute of this kind, as a 32-bit number.
    pub(crate) fn number(self, kind: u16) -> Option<u32> {
        u32_at(self.find(kind)?, 0)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let len = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & KIND;
        let value = self.0.get(ATTRIBUTE..len)?; // `None` also if `len` is too short for the header
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default(); // the last one may lack its padding
        Some((kind, value))
    }
}

/// Returns the error that the body of an [`ERROR`] message reports: a `struct nlmsgerr`, which begins with a negative
/// errno. Returns EBADMSG if the body is shorter.
pub(crate) fn error(body: &[u8]) -> io::Error {
    let errno = u32_at(body, 0).map_or(libc::EBADMSG, |errno| errno.cast_signed().saturating_neg());
    io::Error::from_raw_os_error(errno)
}

/// Returns the 16-bit field at an offset; `None` beyond the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_ne_bytes(field.try_into().ok()?))
}

/// Returns the 32-bit field at an offset; `None` beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(field.try_into().ok()?))
}
