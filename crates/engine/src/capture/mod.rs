//! Packet capture of the adapter's own traffic (the setting `pcap`). It needs no privileges: a [`Tap`] at each socket
//! sees every byte that a system call sent or received.
//!
//! ```text
//!  sys/socket ── bytes ─▶ cut.rs ── frames ─▶ this file: packets with made-up headers ─▶ sys/shared_file
//! ```
//!
//! Each frame is a packet. If both ends of a connection are captured into one file, by two processes, each packet is in
//! the file twice. The TCP sequence numbers are derived from the addresses, so both copies have the same ones, and
//! analysers show the second copy as a retransmission.
//!
//! Bytes in shared memory are captured as if TCP had carried them. They have no CRCs there; if CRCs were agreed for the
//! connection, the capture gets correct ones.

mod cut;

use crate::config::Config;
use crate::sys::shared_file::SharedFile;
use crate::sys::socket::{Party, Tap, TcpLink};
use cut::{Cutter, Sender};
use ironwarp_capture::{CaptureWriter, OpenConnection, file_header};
use ironwarp_rnic::gid::Gid;
use ironwarp_rnic::host::{Host, Span};
use ironwarp_rnic::link::{Piece, Route};
use ironwarp_rnic::sync::lock;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    file: SharedFile,
    /// Reads payload from the program's memory.
    host: Arc<dyn Host>,
    /// Whether capturing has stopped: the file is full, or a write failed.
    ended: AtomicBool,
}

impl Capture {
    /// Opens the capture file that the setting `pcap` names. Returns `None` if the setting is empty. Also returns
    /// `None` if the file cannot be opened, and logs that: the program must not fail because of a capture. Called when
    /// an adapter is opened.
    pub(crate) fn open(config: &Config, host: &Arc<dyn Host>) -> Option<Arc<Self>> {
        if config.pcap.as_os_str().is_empty() {
            return None;
        }
        match SharedFile::open(&config.pcap, &file_header(), config.pcap_limit) {
            Ok(file) => Some(Arc::new(Self { file, host: Arc::clone(host), ended: AtomicBool::new(false) })),
            Err(error) => {
                tracing::error!("packet capture failed to start: {}: {error}", config.pcap.display());
                None
            }
        }
    }

    /// Creates a tap for a connection that this end dials.
    pub(crate) fn client_tap(self: &Arc<Self>) -> Box<dyn Tap> {
        self.tap(true)
    }

    /// Creates a tap for a connection that this end accepts.
    pub(crate) fn server_tap(self: &Arc<Self>) -> Box<dyn Tap> {
        self.tap(false)
    }

    /// Creates a tap for a connection of which this end is the client, or the server.
    fn tap(self: &Arc<Self>, is_client: bool) -> Box<dyn Tap> {
        let state = State {
            cutter: Cutter::new(),
            writer: CaptureWriter::resume(Vec::new()),
            connection: None,
            aborted: false,
        };
        Box::new(ConnectionTap { capture: Arc::clone(self), is_client, state: Mutex::new(state) })
    }

    /// Adds a datagram that was sent or received, unless an end has no IP address.
    pub(crate) fn record_datagram(
        &self,
        (from, from_port): (Gid, u16),
        (to, to_port): (Gid, u16),
        bytes: &[u8],
    ) {
        let (Some(from), Some(to)) = (from.ip(), to.ip()) else { return };
        let ends = (SocketAddr::new(from, from_port), SocketAddr::new(to, to_port));
        let mut writer = CaptureWriter::resume(Vec::new());
        let built = writer.datagram(now(), ends, bytes);
        self.append(built, writer.get_mut());
    }

    /// Appends packets to the file, and clears their buffer. `built` is the result of building the packets. An error of
    /// building or appending them stops capturing; only the first one is logged. One system call writes all packets,
    /// so that other processes cannot write in between.
    fn append(&self, built: io::Result<()>, packets: &mut Vec<u8>) {
        if !self.ended.load(Ordering::Relaxed)
            && let Err(error) = built.and_then(|()| self.file.append(packets))
            && !self.ended.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("packet capture stopped: {error}");
        }
        packets.clear();
    }

    /// Appends the first `len` bytes of the program's memory at `spans` to `bytes`.
    fn read_memory(&self, spans: impl Iterator<Item = Span>, mut len: usize, bytes: &mut Vec<u8>) {
        for span in spans {
            let part = Span { len: span.len.min(len), ..span };
            len -= part.len;
            let at = bytes.len();
            bytes.resize(at + part.len, 0);
            // If reading fails, because the program has unmapped the memory since, the bytes stay zero.
            let _ = self.host.gather(&[part], &mut bytes[at..]);
        }
    }
}

/// Captures the bytes of one connection.
#[derive(Debug)]
struct ConnectionTap {
    capture: Arc<Capture>,
    /// Whether this end is the client.
    is_client: bool,
    state: Mutex<State>,
}

/// The state of a captured connection.
#[derive(Debug)]
struct State {
    cutter: Cutter,
    /// Builds packets in a buffer, which is written to the file at once.
    writer: CaptureWriter<Vec<u8>>,
    /// Addresses and sequence numbers. `None` until the first bytes: the addresses are not known before.
    connection: Option<OpenConnection>,
    /// Whether this end has aborted the connection.
    aborted: bool,
}

impl Tap for ConnectionTap {
    fn on_sent(&self, link: &TcpLink, pieces: &[Piece<'_>], len: usize) {
        let (mut bytes, mut left) = (Vec::with_capacity(len), len);
        for piece in pieces {
            let part = piece.len().min(left);
            match piece {
                Piece::Own(own) => bytes.extend_from_slice(&own[..part]),
                Piece::Host(span) => self.capture.read_memory(std::iter::once(*span), part, &mut bytes),
            }
            left -= part;
        }
        self.record(link, self.is_client, &bytes);
    }

    fn on_received(&self, link: &TcpLink, host: &[Span], own: &[u8], len: usize) {
        let in_host = host.iter().map(|span| span.len).sum::<usize>().min(len);
        let mut bytes = Vec::with_capacity(len);
        self.capture.read_memory(host.iter().copied(), in_host, &mut bytes);
        bytes.extend_from_slice(&own[..len - in_host]);
        self.record(link, !self.is_client, &bytes);
    }

    fn on_switch(&self, sender: Party, route: Route) {
        let from_client = self.is_client == (sender == Party::Local);
        lock(&self.state).cutter.set_adds_crc(Sender::of(from_client), route == Route::SharedMemory);
    }

    fn on_abort(&self) {
        lock(&self.state).aborted = true;
    }
}

impl ConnectionTap {
    /// Adds bytes that the client (`from_client`) or the server sent.
    fn record(&self, link: &TcpLink, from_client: bool, bytes: &[u8]) {
        if self.capture.ended.load(Ordering::Relaxed) {
            return;
        }
        let mut state = lock(&self.state);
        let State { cutter, writer, connection, .. } = &mut *state;
        let mut built = Ok(());
        if connection.is_none() {
            let ends = link.local_addr().and_then(|local| Ok((local, link.peer_addr()?)));
            let opened = ends.and_then(|ends| open(writer, ends, self.is_client));
            built = opened.map(|opened| *connection = Some(opened));
        }
        cutter.add(Sender::of(from_client), bytes, |frame| {
            if let (Ok(()), Some(connection)) = (&built, &mut *connection) {
                built = writer.send(now(), connection, from_client, frame);
            }
        });
        self.capture.append(built, writer.get_mut());
    }
}

impl Drop for ConnectionTap {
    /// Adds the bytes that are left and the end of the connection, when the socket is closed.
    fn drop(&mut self) {
        let State { cutter, writer, connection, aborted } =
            self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(mut connection) = connection.take() else { return };
        let mut built = Ok(());
        cutter.end(|from, bytes| {
            if built.is_ok() {
                built = writer.send(now(), &mut connection, from == Sender::Initiator, bytes);
            }
        });
        let built = built.and_then(|()| match aborted {
            true => writer.reset(now(), connection, self.is_client),
            false => writer.close(now(), connection),
        });
        self.capture.append(built, writer.get_mut());
    }
}

/// Adds the packets that open a connection between these addresses.
fn open(
    writer: &mut CaptureWriter<Vec<u8>>,
    (local, peer): (SocketAddr, SocketAddr),
    is_client: bool,
) -> io::Result<OpenConnection> {
    let (client, server) = if is_client { (local, peer) } else { (peer, local) };
    writer.open_at(now(), (client, first_seq(client, server)), (server, first_seq(server, client)))
}

/// Returns the first sequence number of a sender, derived from the addresses: the same in both processes.
fn first_seq(from: SocketAddr, to: SocketAddr) -> u32 {
    let mut hasher = DefaultHasher::new();
    (from.ip(), from.port(), to.ip(), to.port()).hash(&mut hasher);
    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    let seq = hasher.finish() as u32;
    seq
}

/// Returns the time since the epoch, for the time stamp of a packet.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
