//! The stream of a virtual machine: QEMU's `-netdev stream` at a Unix socket, where each frame follows its length of 32 bits,
//! big-endian, and has no virtio header.

use crate::arrived::Arrived;
use crate::endpoint::lock;
use crate::ring::Space;
use crate::wait::wait_for;
use ironwarp_io_unit::frame::{MAX_FRAME, VNET_HEADER, segments};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Length of the length of a frame.
const PREFIX: usize = 4;
/// Shortest frame: its Ethernet header.
const MIN_FRAME: usize = 14;
/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// A socket at which one virtual machine at a time is connected.
#[derive(Debug)]
pub(crate) struct Stream {
    listener: UnixListener,
    connection: Mutex<Option<Arc<Connection>>>,
    /// How long to wait for a reader that is slow before frames are dropped.
    patience: Duration,
    mtu: u32,
}

#[derive(Debug)]
struct Connection {
    socket: UnixStream,
    /// Bytes that were read and not parsed.
    input: Mutex<Vec<u8>>,
    /// The end of frames that did not fit into the socket.
    output: Mutex<Vec<u8>>,
}

impl Stream {
    pub(crate) fn new(listener: UnixListener, patience: Duration, mtu: u32) -> Self {
        Self { listener, connection: Mutex::new(None), patience, mtu }
    }

    /// Waits until there may be a frame to read, or until a virtual machine connects. Returns false if `stop` is readable.
    pub(crate) fn wait(&self, stop: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        if let Some(connection) = self.connection() {
            // A machine that was killed before it had read everything resets its connection. The next read notices that, and
            // this port goes on without it.
            return Ok(wait_for(PollFd::new(&connection.socket, PollFlags::IN), stop).unwrap_or(true));
        }
        let go_on = wait_for(PollFd::new(&self.listener, PollFlags::IN), stop)?;
        if let Ok((socket, _)) = self.listener.accept() {
            socket.set_nonblocking(true)?;
            let (input, output) = (Mutex::default(), Mutex::default());
            *lock(&self.connection) = Some(Arc::new(Connection { socket, input, output }));
        }
        Ok(go_on)
    }

    /// Reads a frame, and puts an empty virtio header in front. Returns `None` if there is none.
    pub(crate) fn read(&self, into: &Space) -> io::Result<Option<usize>> {
        let Some(connection) = self.connection() else { return Ok(None) };
        match connection.read(into) {
            Ok(read) => Ok(read),
            Err(error) => {
                eprintln!("the stream has ended: {error}");
                *lock(&self.connection) = None;
                Ok(None)
            }
        }
    }

    /// Writes a frame, in segments if it is a super-packet. Returns false if it is dropped.
    pub(crate) fn write(&self, frame: &Arrived) -> bool {
        let Some(connection) = self.connection() else { return false };
        let Ok(bytes) = frame.to_vec() else { return false };
        let mut output = lock(&connection.output);
        // A failure is noticed by the thread that reads.
        let _ = connection.flush(&mut output, Duration::ZERO);
        if !output.is_empty() {
            return false;
        }
        let cut = segments(&bytes, self.mtu, |segment| {
            let len = u32::try_from(segment.len()).expect("at most the length of a frame");
            output.extend(len.to_be_bytes());
            output.extend_from_slice(segment);
        });
        if cut.is_err() {
            output.clear();
        }
        cut.is_ok() && connection.flush(&mut output, self.patience).is_ok()
    }

    fn connection(&self) -> Option<Arc<Connection>> {
        lock(&self.connection).clone()
    }
}

impl Connection {
    fn read(&self, into: &Space) -> io::Result<Option<usize>> {
        let mut input = lock(&self.input);
        loop {
            if let Some((prefix, rest)) = input.split_first_chunk::<PREFIX>() {
                let len = u32::from_be_bytes(*prefix) as usize;
                if !(MIN_FRAME..=MAX_FRAME - VNET_HEADER).contains(&len) {
                    let why = format!("invalid length {len} of a frame");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, why));
                }
                if let Some(frame) = rest.get(..len) {
                    let place = |result: Result<(), _>| result.map_err(io::Error::other);
                    place(into.memory.write(into.at, &[0; VNET_HEADER]))?;
                    place(into.memory.write(into.at + VNET_HEADER, frame))?;
                    input.drain(..PREFIX + len);
                    return Ok(Some(VNET_HEADER + len));
                }
            }
            let have = input.len();
            input.resize(have + CHUNK, 0);
            let read = (&self.socket).read(&mut input[have..]);
            input.truncate(have + read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes as much as the socket takes within a time. What is left stays in `output`.
    fn flush(&self, output: &mut Vec<u8>, patience: Duration) -> io::Result<()> {
        let start = Instant::now();
        let mut written = 0;
        let result = loop {
            if written == output.len() {
                break Ok(());
            }
            match (&self.socket).write(&output[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = patience.saturating_sub(start.elapsed());
                    if left.is_zero() {
                        break Ok(());
                    }
                    let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&timeout));
                }
                Err(error) => break Err(error),
            }
        };
        output.drain(..written);
        result
    }
}
