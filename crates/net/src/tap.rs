//! TAP devices: frames with a virtio-net header in front, and offloads that let the kernel pass super-packets.
//!
//! The only file of this crate with `unsafe`: requests of ioctl(2) for `/dev/net/tun` and for interfaces.
#![expect(unsafe_code, reason = "ioctl(2)")]

use crate::arrived::Arrived;
use crate::ring::Space;
use crate::super_packets;
use ironwarp_io_unit::frame::{ALL_OFFLOADS, MAX_FRAME, TCP_OFFLOADS, VNET_HEADER};
use ironwarp_io_unit::message::Mac;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};
use rustix::net::{AddressFamily, SocketType};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

// Requests of linux/if_tun.h and linux/sockios.h.
const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<i32>(b'T', 216);
const TUNSETVNETLE: Opcode = opcode::write::<i32>(b'T', 220);
const TUNSETCARRIER: Opcode = opcode::write::<i32>(b'T', 226);
const SIOCGIFMTU: Opcode = 0x8921;
const SIOCSIFMTU: Opcode = 0x8922;
const SIOCSIFHWADDR: Opcode = 0x8924;

const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const ARPHRD_ETHER: u16 = 1;

/// Offloads that every kernel has: checksums, TSO4, TSO6, and TSO with ECN.
const TUN_F_TSO: usize = 0x0f;
/// Segmentation of UDP, which needs Linux 6.2.
const TUN_F_USO: usize = 0x60;

/// Longest name of an interface.
const MAX_NAME: usize = 15;

/// `struct ifreq` of 64-bit systems.
#[repr(C)]
struct Request {
    name: [u8; 16],
    value: [u8; 24],
}

impl Request {
    fn new(name: &str, value: &[&[u8]]) -> io::Result<Self> {
        if name.is_empty() || name.len() > MAX_NAME {
            let why = format!("invalid interface name `{name}`: expected 1 to {MAX_NAME} characters");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let mut request = Self { name: [0; 16], value: [0; 24] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        let bytes = value.concat();
        request.value[..bytes.len()].copy_from_slice(&bytes);
        Ok(request)
    }
}

/// A TAP device. It disappears when its descriptor is closed, unless it is persistent.
#[derive(Debug)]
pub(crate) struct Tap(OwnedFd);

impl Tap {
    /// Creates the device in the network namespace of this thread, or attaches to it if it exists. The carrier is off. Without
    /// a MAC address, the kernel chooses one.
    pub(crate) fn open(name: &str, mac: Option<Mac>, mtu: u32) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(at("open /dev/net/tun"))?;
        let kind = (IFF_TAP | IFF_NO_PI | IFF_VNET_HDR).to_ne_bytes();
        let mut request = Request::new(name, &[&kind])?;
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`.
        let done = unsafe { ioctl(&fd, Updater::<TUNSETIFF, Request>::new(&mut request)) };
        done.map_err(at("create the TAP device"))?;
        let header = i32::try_from(VNET_HEADER).expect("12");
        // SAFETY: TUNSETVNETHDRSZ reads an `int`.
        let done = unsafe { ioctl(&fd, Setter::<TUNSETVNETHDRSZ, i32>::new(header)) };
        done.map_err(at("set the length of the virtio header"))?;
        // SAFETY: TUNSETVNETLE reads an `int`.
        let done = unsafe { ioctl(&fd, Setter::<TUNSETVNETLE, i32>::new(1)) };
        done.map_err(at("set the byte order of the virtio header"))?;
        let tap = Self(fd);
        tap.set_carrier(false)?;
        tap.configure(name, mac, mtu)?;
        // Only faster, and not for the user of a device of the administrator.
        let _ = super_packets::limit(name);
        Ok(tap)
    }

    fn configure(&self, name: &str, mac: Option<Mac>, mtu: u32) -> io::Result<()> {
        if let Some(mac) = mac {
            let request = Request::new(name, &[&ARPHRD_ETHER.to_ne_bytes(), &mac.0])?;
            // SAFETY: SIOCSIFHWADDR reads a `struct ifreq`.
            let done = unsafe { ioctl(&self.0, Setter::<SIOCSIFHWADDR, Request>::new(request)) };
            done.map_err(at("set the MAC address"))?;
        }
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let mtu = i32::try_from(mtu).map_err(|_| Errno::INVAL)?;
        let mut current = Request::new(name, &[])?;
        // SAFETY: SIOCGIFMTU reads and writes a `struct ifreq`.
        let done = unsafe { ioctl(&socket, Updater::<SIOCGIFMTU, Request>::new(&mut current)) };
        done.map_err(at("read the MTU"))?;
        if current.value[..4] == mtu.to_ne_bytes() {
            // Setting it needs privileges, which the user of a device of the administrator does not have.
            return Ok(());
        }
        let request = Request::new(name, &[&mtu.to_ne_bytes()])?;
        // SAFETY: SIOCSIFMTU reads a `struct ifreq`.
        let done = unsafe { ioctl(&socket, Setter::<SIOCSIFMTU, Request>::new(request)) };
        done.map_err(at("set the MTU"))
    }

    /// Takes over the descriptor of a device that [`Self::open`] has set up in another process.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Lets the kernel pass super-packets and frames without checksums. Returns the offloads, which include those for UDP
    /// since Linux 6.2.
    pub(crate) fn enable_offloads(&self) -> io::Result<u32> {
        let set = |offloads| {
            // SAFETY: TUNSETOFFLOAD takes bits by value.
            unsafe { ioctl(&self.0, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads)) }
        };
        match set(TUN_F_TSO | TUN_F_USO) {
            Ok(()) => Ok(ALL_OFFLOADS),
            Err(Errno::INVAL) => set(TUN_F_TSO).map(|()| TCP_OFFLOADS).map_err(at("enable offloads")),
            Err(error) => Err(at("enable offloads")(error)),
        }
    }

    /// Tells the kernel whether the link works.
    pub(crate) fn set_carrier(&self, on: bool) -> io::Result<()> {
        // SAFETY: TUNSETCARRIER reads an `int`.
        let done = unsafe { ioctl(&self.0, Setter::<TUNSETCARRIER, i32>::new(i32::from(on))) };
        done.map_err(at("set the carrier"))
    }

    /// Reads a frame with its header: the kernel copies it to registered memory. Returns `None` if there is none.
    pub(crate) fn read(&self, into: &Space) -> io::Result<Option<usize>> {
        match into.memory.read_from(&self.0, into.at..into.at + MAX_FRAME) {
            Ok(len) => Ok(Some(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => {
                Err(io::Error::new(error.kind(), format!("failed to read from the TAP device: {error}")))
            }
        }
    }

    /// Writes a frame with its header. Returns false if the kernel does not take it: the interface is down, or the header
    /// is wrong.
    pub(crate) fn write(&self, frame: &Arrived) -> bool {
        frame.write_to(&self.0).is_ok()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn at(what: &'static str) -> impl Fn(Errno) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("failed to {what}: {error}"))
}
