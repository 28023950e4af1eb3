//! Configuration and utility messages (requirement P8).

use super::identity::{HostName, Mac, Nonce, Proof};
use super::reader::{Malformed, Reader};

/// Maximum number of MAC addresses of a host.
const MAX_MACS: usize = 16;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names of the protocol, which `Request` explains")]
pub enum Operation {
    Challenge = 1,
    Attach = 2,
    Join = 3,
    SetMac = 4,
    Mtu = 5,
    Statistics = 6,
    Detach = 7,
}

/// Body of a CfgUtilRequest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for the nonce of the unit.
    Challenge,
    /// Attaches the host.
    Attach(Box<Attach>),
    /// Ties a data channel to its session.
    Join(Join),
    /// Sets the address of the host.
    SetMac(Mac),
    /// Sets the MTU; 0 asks for it.
    Mtu(u32),
    /// Asks for the counters of the other end.
    Statistics,
    /// Ends the session.
    Detach,
    /// An operation that this version does not know. It is answered with [`Status::Unsupported`].
    Unknown {
        /// Its number.
        operation: u16,
        /// Its data.
        data: Vec<u8>,
    },
}

/// Body of a CfgUtilReply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The nonce of the unit.
    Challenge(Nonce),
    /// The host is attached.
    Attach(Admitted),
    /// The data channel belongs to the session.
    Join,
    /// The address is set.
    SetMac,
    /// The MTU in use.
    Mtu(u32),
    /// The counters.
    Statistics(Statistics),
    /// The session ends when the host closes its connections.
    Detach,
    /// The request failed.
    Failed {
        /// Number of the operation.
        operation: u16,
        /// Reason.
        status: Status,
    },
}

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u16)]
pub enum Status {
    /// The receiver does not know the operation, or does not take it from this end.
    #[error("unsupported operation")]
    Unsupported = 1,
    /// The name is unknown or the proof is wrong.
    #[error("authentication failed: check the name and the key of this host")]
    AuthenticationFailed = 2,
    /// The key does not include a MAC address.
    #[error("MAC address not allowed: the unit binds others to this host")]
    NotAllowed = 3,
    /// The request does not fit the state of the session.
    #[error("not attached, or attached already")]
    WrongState = 4,
    /// A value is out of range.
    #[error("value out of range")]
    OutOfRange = 5,
}

/// How frames travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// In SendData messages, on unacknowledged channels.
    Send = 1,
    /// By Writes into advertised pools, on acknowledged channels.
    Rdma = 2,
}

/// Data of an Attach request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// How frames travel in this session.
    pub mode: Mode,
    /// Offloads that the host supports.
    pub offloads: u32,
    /// Nonce of the host.
    pub nonce: Nonce,
    /// Name of the host.
    pub name: HostName,
    /// MAC addresses that the host uses: 1 to 16.
    pub macs: Vec<Mac>,
    /// Shows that the host knows its key.
    pub proof: Proof,
}

/// Data of the reply to an Attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Number of the session.
    pub session: u64,
    /// Grows with every Attach that the unit admits.
    pub generation: u64,
    /// Offloads that both support.
    pub offloads: u32,
    /// MTU of the LAN.
    pub mtu: u32,
    /// Shows that the unit knows the key of the host.
    pub proof: Proof,
}

/// Data of a Join request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// Number of the session.
    pub session: u64,
    /// Generation of the session.
    pub generation: u64,
    /// Shows that the data channel comes from the host of this session.
    pub proof: Proof,
}

/// Counters of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames sent.
    pub frames_sent: u64,
    /// Bytes of these frames.
    pub bytes_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Bytes of these frames.
    pub bytes_received: u64,
    /// Frames dropped because the peer had no room, or because they were too long.
    pub drops: u64,
    /// Number of times that sending stopped because the peer had no room.
    pub stalls: u64,
    /// Pools of both ends.
    pub pools: u64,
    /// Elements of the peer's pools that are free.
    pub elements_free: u64,
}

impl Request {
    /// Returns the number of the operation.
    pub fn operation(&self) -> u16 {
        match self {
            Self::Challenge => Operation::Challenge as u16,
            Self::Attach(_) => Operation::Attach as u16,
            Self::Join(_) => Operation::Join as u16,
            Self::SetMac(_) => Operation::SetMac as u16,
            Self::Mtu(_) => Operation::Mtu as u16,
            Self::Statistics => Operation::Statistics as u16,
            Self::Detach => Operation::Detach as u16,
            Self::Unknown { operation, .. } => *operation,
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (operation, reserved, data) = envelope(reader)?;
        if reserved != 0 {
            return Err(Malformed::Value { field: "reserved field", value: reserved.into() });
        }
        let mut reader = Reader::new(data);
        let request = match Operation::new(operation) {
            Some(Operation::Challenge) => Self::Challenge,
            Some(Operation::Attach) => Self::Attach(Box::new(Attach::decode(&mut reader)?)),
            Some(Operation::Join) => Self::Join(Join {
                session: reader.u64("session")?,
                generation: reader.u64("generation")?,
                proof: Proof(reader.array("proof")?),
            }),
            Some(Operation::SetMac) => Self::SetMac(mac(&mut reader)?),
            Some(Operation::Mtu) => Self::Mtu(reader.u32("MTU")?),
            Some(Operation::Statistics) => Self::Statistics,
            Some(Operation::Detach) => Self::Detach,
            None => return Ok(Self::Unknown { operation, data: data.to_vec() }),
        };
        reader.end()?;
        Ok(request)
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        match self {
            Self::Challenge | Self::Statistics | Self::Detach => {}
            Self::Attach(attach) => {
                attach.encode_signed(&mut data);
                data.extend(attach.proof.0);
            }
            Self::Join(join) => {
                data.extend(join.session.to_be_bytes());
                data.extend(join.generation.to_be_bytes());
                data.extend(join.proof.0);
            }
            Self::SetMac(mac) => data.extend(mac.0),
            Self::Mtu(mtu) => data.extend(mtu.to_be_bytes()),
            Self::Unknown { data: unknown, .. } => data.extend(unknown),
        }
        encode_envelope(self.operation(), 0, &data, out);
    }
}

impl Reply {
    /// Returns the number of the operation.
    pub fn operation(&self) -> u16 {
        match self {
            Self::Challenge(_) => Operation::Challenge as u16,
            Self::Attach(_) => Operation::Attach as u16,
            Self::Join => Operation::Join as u16,
            Self::SetMac => Operation::SetMac as u16,
            Self::Mtu(_) => Operation::Mtu as u16,
            Self::Statistics(_) => Operation::Statistics as u16,
            Self::Detach => Operation::Detach as u16,
            Self::Failed { operation, .. } => *operation,
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (operation, status, data) = envelope(reader)?;
        let mut reader = Reader::new(data);
        let reply = if status == 0 {
            Self::decode_done(operation, &mut reader)?
        } else {
            let status =
                Status::new(status).ok_or(Malformed::Value { field: "status", value: status.into() })?;
            Self::Failed { operation, status }
        };
        reader.end()?;
        Ok(reply)
    }

    fn decode_done(operation: u16, reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match Operation::new(operation) {
            Some(Operation::Challenge) => Self::Challenge(Nonce(reader.array("nonce")?)),
            Some(Operation::Attach) => Self::Attach(Admitted {
                session: reader.u64("session")?,
                generation: reader.u64("generation")?,
                offloads: reader.u32("offloads")?,
                mtu: reader.u32("MTU")?,
                proof: Proof(reader.array("proof")?),
            }),
            Some(Operation::Join) => Self::Join,
            Some(Operation::SetMac) => Self::SetMac,
            Some(Operation::Mtu) => Self::Mtu(reader.u32("MTU")?),
            Some(Operation::Statistics) => {
                let mut counters = [0; 8];
                for counter in &mut counters {
                    *counter = reader.u64("counter")?;
                }
                Self::Statistics(Statistics::from_array(counters))
            }
            Some(Operation::Detach) => Self::Detach,
            None => return Err(Malformed::Value { field: "operation of a reply", value: operation.into() }),
        })
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        let mut status = 0;
        match self {
            Self::Challenge(nonce) => data.extend(nonce.0),
            Self::Attach(admitted) => {
                admitted.encode_signed(&mut data);
                data.extend(admitted.proof.0);
            }
            Self::Join | Self::SetMac | Self::Detach => {}
            Self::Mtu(mtu) => data.extend(mtu.to_be_bytes()),
            Self::Statistics(statistics) => {
                statistics.to_array().iter().for_each(|counter| data.extend(counter.to_be_bytes()));
            }
            Self::Failed { status: failed, .. } => status = *failed as u16,
        }
        encode_envelope(self.operation(), status, &data, out);
    }
}

impl Attach {
    /// Encodes everything that the proof covers: all fields except the proof.
    pub(crate) fn encode_signed(&self, out: &mut Vec<u8>) {
        let name = self.name.as_str();
        let length = |len: usize| u8::try_from(len).expect("checked where it was created");
        out.extend([self.mode as u8, length(name.len()), length(self.macs.len()), 0]);
        out.extend(self.offloads.to_be_bytes());
        out.extend(self.nonce.0);
        out.extend(name.as_bytes());
        self.macs.iter().for_each(|mac| out.extend(mac.0));
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mode = match reader.u8("mode")? {
            1 => Mode::Send,
            2 => Mode::Rdma,
            value => return Err(Malformed::Value { field: "mode", value: value.into() }),
        };
        let name_len = reader.u8("length of the name")?;
        let macs = reader.u8("number of MAC addresses")?;
        if !(1..=MAX_MACS).contains(&macs.into()) {
            return Err(Malformed::Value { field: "number of MAC addresses", value: macs.into() });
        }
        let reserved = reader.u8("reserved field")?;
        if reserved != 0 {
            return Err(Malformed::Value { field: "reserved field", value: reserved.into() });
        }
        let offloads = reader.u32("offloads")?;
        let nonce = Nonce(reader.array("nonce")?);
        let name =
            std::str::from_utf8(reader.bytes(name_len.into(), "name")?).map_err(|_| Malformed::Name)?;
        let name = HostName::new(name).map_err(|_| Malformed::Name)?;
        let macs = (0..macs).map(|_| mac(reader)).collect::<Result<_, _>>()?;
        Ok(Self { mode, offloads, nonce, name, macs, proof: Proof(reader.array("proof")?) })
    }
}

impl Admitted {
    /// Encodes everything that the proof covers: all fields except the proof.
    pub(crate) fn encode_signed(&self, out: &mut Vec<u8>) {
        out.extend(self.session.to_be_bytes());
        out.extend(self.generation.to_be_bytes());
        out.extend(self.offloads.to_be_bytes());
        out.extend(self.mtu.to_be_bytes());
    }
}

impl Statistics {
    fn to_array(self) -> [u64; 8] {
        [
            self.frames_sent,
            self.bytes_sent,
            self.frames_received,
            self.bytes_received,
            self.drops,
            self.stalls,
            self.pools,
            self.elements_free,
        ]
    }

    fn from_array(counters: [u64; 8]) -> Self {
        let [frames_sent, bytes_sent, frames_received, bytes_received, drops, stalls, pools, elements_free] =
            counters;
        Self { frames_sent, bytes_sent, frames_received, bytes_received, drops, stalls, pools, elements_free }
    }
}

impl Operation {
    fn new(number: u16) -> Option<Self> {
        use Operation::{Attach, Challenge, Detach, Join, Mtu, SetMac, Statistics};
        let all = [Challenge, Attach, Join, SetMac, Mtu, Statistics, Detach];
        all.into_iter().find(|operation| *operation as u16 == number)
    }
}

impl Status {
    fn new(number: u16) -> Option<Self> {
        use Status::{AuthenticationFailed, NotAllowed, OutOfRange, Unsupported, WrongState};
        let all = [Unsupported, AuthenticationFailed, NotAllowed, WrongState, OutOfRange];
        all.into_iter().find(|status| *status as u16 == number)
    }
}

fn mac(reader: &mut Reader<'_>) -> Result<Mac, Malformed> {
    let mac = Mac(reader.array("MAC address")?);
    let value = mac.0.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    if mac.is_valid() { Ok(mac) } else { Err(Malformed::Value { field: "MAC address", value }) }
}

/// Decodes the operation, the field after it, and the data, which is the rest of the message.
fn envelope<'a>(reader: &mut Reader<'a>) -> Result<(u16, u16, &'a [u8]), Malformed> {
    let (operation, second) = (reader.u16("operation")?, reader.u16("status")?);
    let size = reader.u32("size of the data")?;
    Ok((operation, second, reader.bytes(size as usize, "data of a request or reply")?))
}

fn encode_envelope(operation: u16, second: u16, data: &[u8], out: &mut Vec<u8>) {
    out.extend(operation.to_be_bytes());
    out.extend(second.to_be_bytes());
    out.extend(u32::try_from(data.len()).expect("data fits in a message").to_be_bytes());
    out.extend(data);
}
