//! The names of the descriptors of an adapter.

/// What the descriptor of an adapter is for: its name in a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// A buffer: the address of the first buffer of its region, which identifies the region, and its own address and length.
    Buffer { first: u64, addr: u64, len: u64 },
    /// The socket of the queue pair with this number.
    Socket(u32),
    /// The socket of the listener with this number.
    Listener(u32),
}

impl Name {
    /// Returns the bytes of the name.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Buffer { first, addr, len } => {
                let [first, addr, len] = [first, addr, len].map(u64::to_be_bytes);
                [&b"B"[..], &first, &addr, &len].concat()
            }
            Self::Socket(number) => [&b"Q"[..], &number.to_be_bytes()].concat(),
            Self::Listener(number) => [&b"L"[..], &number.to_be_bytes()].concat(),
        }
    }

    /// Reads a name. `None` if it is not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (b'B', rest) => {
                let ([first, addr, len], []) = rest.as_chunks::<8>() else { return None };
                let [first, addr, len] = [first, addr, len].map(|word| u64::from_be_bytes(*word));
                Some(Self::Buffer { first, addr, len })
            }
            (b'Q', rest) => Some(Self::Socket(u32::from_be_bytes(rest.try_into().ok()?))),
            (b'L', rest) => Some(Self::Listener(u32::from_be_bytes(rest.try_into().ok()?))),
            _ => None,
        }
    }
}
