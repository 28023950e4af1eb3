//! [`TcpImage`], the state of a TCP connection as plain data, and its encoding.
//!
//! The encoding has no version of its own: the message that contains it has one. Numbers are little-endian. Bytes of another
//! host are not trusted: every length is compared with what is left before memory is allocated.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Largest shift of a window (RFC 7323 §2.3).
const MAX_SCALE: u8 = 14;

/// A TCP connection at rest, from which another host makes the same connection (requirement X2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpImage {
    /// The local address.
    pub local: SocketAddr,
    /// The remote address, of the same IP version.
    pub peer: SocketAddr,
    /// Whether this end has closed its sending direction: a FIN follows `unsent`.
    pub finished: bool,
    /// Whether the peer has closed its direction: its FIN follows `received`.
    pub peer_finished: bool,
    /// Sequence number of the first byte of `sent`.
    pub send_seq: u32,
    /// The next sequence number that is expected from the peer: after `received`, and after the peer's FIN.
    pub receive_seq: u32,
    /// What the two ends have agreed on.
    pub agreed: Agreed,
    /// The windows of both directions.
    pub window: Window,
    /// The options of the socket.
    pub options: SocketOptions,
    /// Bytes that were sent and not acknowledged.
    pub sent: Vec<u8>,
    /// Bytes that TCP had accepted, and had not sent.
    pub unsent: Vec<u8>,
    /// Bytes that had arrived, and were not read. They are acknowledged, so the peer never sends them again. They are not put
    /// back into TCP: the caller hands them to the reader of the stream before anything that it receives.
    pub received: Vec<u8>,
}

/// What the two ends of a connection agreed on when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Largest segment that the peer accepts.
    pub mss: u32,
    /// Shifts of the windows, of the peer's and of the own one; `None` if windows are not scaled.
    pub window_scale: Option<(u8, u8)>,
    /// Whether selective acknowledgements are used.
    pub sack: bool,
    /// The clock of the own timestamps, if timestamps are used. It must not run backwards (RFC 7323 §5).
    pub timestamp: Option<u32>,
}

/// The windows of a connection (`struct tcp_repair_window`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Sequence number of the segment that last changed the peer's window.
    pub send_update: u32,
    /// The peer's window.
    pub send: u32,
    /// The largest window that the peer has offered.
    pub largest: u32,
    /// The own window.
    pub receive: u32,
    /// Sequence number from which the own window counts.
    pub receive_update: u32,
}

/// The options of a socket that `tcp.rs` sets, or the kernel adapts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// TCP_NODELAY.
    pub no_delay: bool,
    /// SO_KEEPALIVE.
    pub keepalive: bool,
    /// SO_REUSEADDR.
    pub reuse_addr: bool,
    /// SO_REUSEPORT.
    pub reuse_port: bool,
    /// Whether the program has fixed the size of the send buffer (SO_BUF_LOCK).
    pub fixed_send_buffer: bool,
    /// Whether the program has fixed the size of the receive buffer.
    pub fixed_receive_buffer: bool,
    /// TCP_KEEPIDLE, in seconds.
    pub keepalive_idle: u32,
    /// TCP_KEEPINTVL, in seconds.
    pub keepalive_interval: u32,
    /// TCP_KEEPCNT.
    pub keepalive_probes: u32,
    /// TCP_USER_TIMEOUT, in milliseconds.
    pub user_timeout: u32,
    /// IP_TOS or IPV6_TCLASS.
    pub traffic_class: u8,
    /// SO_SNDBUF.
    pub send_buffer: u32,
    /// SO_RCVBUF.
    pub receive_buffer: u32,
}

/// Why bytes are not the image of a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes end within a field.
    #[error("image of a TCP connection too short: {have} bytes left, need {need}")]
    TooShort {
        /// Bytes that are left.
        have: usize,
        /// Length of the field.
        need: usize,
    },
    /// There are bytes after the last field.
    #[error("{0} bytes after the image of a TCP connection")]
    TooLong(usize),
    /// A field has a value that it cannot have.
    #[error("invalid image of a TCP connection: {field} is {value:#x}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Number of flags in an image.
const FLAGS: usize = 11;
/// Number of 32-bit numbers in an image.
const NUMBERS: usize = 15;

impl TcpImage {
    /// Encodes the image.
    pub fn encode(&self) -> Vec<u8> {
        let queues = [&self.sent, &self.unsent, &self.received];
        let mut bytes = Vec::with_capacity(256 + queues.iter().map(|queue| queue.len()).sum::<usize>());
        put_address(&mut bytes, self.local);
        put_address(&mut bytes, self.peer);
        let flags = (0..).zip(self.flags()).fold(0, |bits, (at, flag)| bits | u16::from(flag) << at);
        bytes.extend_from_slice(&flags.to_le_bytes());
        let (send_scale, receive_scale) = self.agreed.window_scale.unwrap_or_default();
        bytes.extend_from_slice(&[send_scale, receive_scale, self.options.traffic_class]);
        self.numbers().iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        for queue in queues {
            bytes.extend_from_slice(&(queue.len() as u64).to_le_bytes());
            bytes.extend_from_slice(queue);
        }
        bytes
    }

    /// Decodes an image, which must be all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        let mut left = Reader(bytes);
        let (local, peer) = (left.address()?, left.address()?);
        if local.is_ipv4() != peer.is_ipv4() {
            return Err(ImageError::Invalid { field: "IPv6 peer of an IPv4 address", value: 1 });
        }
        let [
            finished,
            peer_finished,
            sack,
            timed,
            scaled,
            no_delay,
            keepalive,
            reuse_addr,
            reuse_port,
            fixed @ ..,
        ] = left.flags()?;
        let [send_scale, receive_scale, traffic_class] = left.array()?;
        if let Some(scale) = [send_scale, receive_scale].into_iter().find(|&scale| scale > MAX_SCALE) {
            return Err(ImageError::Invalid { field: "window scale", value: scale.into() });
        }
        let [
            send_seq,
            receive_seq,
            mss,
            timestamp,
            window @ ..,
            idle,
            interval,
            probes,
            timeout,
            send,
            receive,
        ] = left.numbers()?;
        let (sent, unsent, received) = (left.queue()?, left.queue()?, left.queue()?);
        if !left.0.is_empty() {
            return Err(ImageError::TooLong(left.0.len()));
        }
        Ok(Self {
            local,
            peer,
            finished,
            peer_finished,
            send_seq,
            receive_seq,
            agreed: Agreed {
                mss,
                window_scale: scaled.then_some((send_scale, receive_scale)),
                sack,
                timestamp: timed.then_some(timestamp),
            },
            window: Window::from_fields(window),
            options: SocketOptions {
                no_delay,
                keepalive,
                reuse_addr,
                reuse_port,
                fixed_send_buffer: fixed[0],
                fixed_receive_buffer: fixed[1],
                keepalive_idle: idle,
                keepalive_interval: interval,
                keepalive_probes: probes,
                user_timeout: timeout,
                traffic_class,
                send_buffer: send,
                receive_buffer: receive,
            },
            sent: sent.to_vec(),
            unsent: unsent.to_vec(),
            received: received.to_vec(),
        })
    }

    /// Returns all flags, in the order of the encoding.
    fn flags(&self) -> [bool; FLAGS] {
        let Self { agreed, options, .. } = self;
        [
            self.finished,
            self.peer_finished,
            agreed.sack,
            agreed.timestamp.is_some(),
            agreed.window_scale.is_some(),
            options.no_delay,
            options.keepalive,
            options.reuse_addr,
            options.reuse_port,
            options.fixed_send_buffer,
            options.fixed_receive_buffer,
        ]
    }

    /// Returns all 32-bit numbers, in the order of the encoding.
    fn numbers(&self) -> [u32; NUMBERS] {
        let Self { agreed, options, .. } = self;
        let [update, send, largest, receive, receive_update] = self.window.fields();
        [
            self.send_seq,
            self.receive_seq,
            agreed.mss,
            agreed.timestamp.unwrap_or_default(),
            update,
            send,
            largest,
            receive,
            receive_update,
            options.keepalive_idle,
            options.keepalive_interval,
            options.keepalive_probes,
            options.user_timeout,
            options.send_buffer,
            options.receive_buffer,
        ]
    }
}

impl Window {
    /// Returns the fields in the kernel's order.
    pub(super) fn fields(self) -> [u32; 5] {
        [self.send_update, self.send, self.largest, self.receive, self.receive_update]
    }

    /// Returns the window with these fields, in the kernel's order.
    pub(super) fn from_fields([send_update, send, largest, receive, receive_update]: [u32; 5]) -> Self {
        Self { send_update, send, largest, receive, receive_update }
    }
}

/// Appends an address: the IP version, 16 bytes that begin with the address, and the port.
fn put_address(bytes: &mut Vec<u8>, address: SocketAddr) {
    let (version, octets) = match address.ip() {
        IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
        IpAddr::V6(ip) => (6, ip.octets()),
    };
    bytes.push(version);
    bytes.extend_from_slice(&octets);
    bytes.extend_from_slice(&address.port().to_le_bytes());
}

/// The bytes that are not decoded yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the next `len` bytes.
    fn take(&mut self, len: u64) -> Result<&'a [u8], ImageError> {
        let need = usize::try_from(len).unwrap_or(usize::MAX);
        let (taken, left) =
            self.0.split_at_checked(need).ok_or(ImageError::TooShort { have: self.0.len(), need })?;
        self.0 = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    /// Takes bytes that are preceded by their length. They are not copied yet.
    fn queue(&mut self) -> Result<&'a [u8], ImageError> {
        let len = u64::from_le_bytes(self.array()?);
        self.take(len)
    }

    fn flags(&mut self) -> Result<[bool; FLAGS], ImageError> {
        let bits = u16::from_le_bytes(self.array()?);
        if bits >> FLAGS != 0 {
            return Err(ImageError::Invalid { field: "flags", value: bits.into() });
        }
        Ok(std::array::from_fn(|at| bits >> at & 1 != 0))
    }

    fn numbers(&mut self) -> Result<[u32; NUMBERS], ImageError> {
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            *number = u32::from_le_bytes(self.array()?);
        }
        Ok(numbers)
    }

    fn address(&mut self) -> Result<SocketAddr, ImageError> {
        let [version] = self.array()?;
        let ip = Ipv6Addr::from(self.array::<16>()?);
        let port = u16::from_le_bytes(self.array()?);
        let ip = match (version, ip.to_ipv4_mapped()) {
            (4, Some(ip)) => IpAddr::V4(ip),
            (6, _) => IpAddr::V6(ip),
            _ => return Err(ImageError::Invalid { field: "IP version", value: version.into() }),
        };
        match port {
            0 => Err(ImageError::Invalid { field: "port", value: 0 }),
            _ => Ok(SocketAddr::new(ip, port)),
        }
    }
}
