//! Reads fields from untrusted bytes.

/// The reason why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The message ends inside a field.
    #[error("message ends inside {field}: {have} bytes left, need {need}")]
    Short {
        /// Name of the field.
        field: &'static str,
        /// Bytes left.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// Bytes follow the last field.
    #[error("{extra} bytes after the end of the message")]
    Trailing {
        /// Number of bytes.
        extra: usize,
    },
    /// A message other than SendData is too long.
    #[error("message of {len} bytes exceeds the maximum of {max}")]
    TooLong {
        /// Length of the message.
        len: usize,
        /// Maximum length.
        max: usize,
    },
    /// The peer speaks another version.
    #[error("unsupported protocol version {found}, expected {expected}")]
    Version {
        /// Version in the header.
        found: u16,
        /// Version of this end.
        expected: u16,
    },
    /// No message has this function.
    #[error("unknown function {found}")]
    Function {
        /// Function in the header.
        found: u16,
    },
    /// A list has no entries.
    #[error("empty list: expected at least one {entry}")]
    Empty {
        /// What the list consists of.
        entry: &'static str,
    },
    /// A field has a value that it cannot have.
    #[error("invalid {field} {value:#x}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// The name of a host is not one.
    #[error("invalid host name: expected 1 to 63 letters, digits, '.', '-' or '_'")]
    Name,
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], Malformed> {
        let have = self.rest.len();
        let (bytes, rest) =
            self.rest.split_at_checked(len).ok_or(Malformed::Short { field, have, need: len })?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Malformed> {
        let bytes = self.bytes(N, field)?;
        Ok(std::array::from_fn(|index| bytes[index]))
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, Malformed> {
        self.array(field).map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, Malformed> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, Malformed> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// Returns the rest, which must have the stated length.
    pub(super) fn exactly(mut self, size: u32, field: &'static str) -> Result<&'a [u8], Malformed> {
        let bytes = self.bytes(size as usize, field)?;
        self.end()?;
        Ok(bytes)
    }

    /// Decodes the rest as a list of entries of `len` bytes each.
    pub(super) fn list<T>(
        &mut self,
        entry: &'static str,
        len: usize,
        decode: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let (count, rest) = (self.rest.len() / len, self.rest.len() % len);
        match (count, rest) {
            (0, 0) => Err(Malformed::Empty { entry }),
            (_, 0) => (0..count).map(|_| decode(self)).collect(),
            _ => Err(Malformed::Short { field: entry, have: rest, need: len }),
        }
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            extra => Err(Malformed::Trailing { extra }),
        }
    }
}
