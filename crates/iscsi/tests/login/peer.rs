//! A target that a test scripts.

use ironwarp_iscsi::{LoginError, Negotiated, Options, login};
use ironwarp_wire::iscsi::{
    Digests, HEADER_LEN, InitiatorPdu, LoginRequest, LoginResponse, PduLayout, SequenceNumbers, TargetPdu,
    padding,
};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// Valid answers to the offers of [`options`].
pub(crate) const OPERATIONAL: &str = "HeaderDigest=CRC32C\0DataDigest=None\0MaxRecvDataSegmentLength=65536\0\
    InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=131072\0FirstBurstLength=0x1000\0MaxConnections=1\0\
    MaxOutstandingR2T=1\0ErrorRecoveryLevel=0\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0DataPDUInOrder=Yes\0\
    DataSequenceInOrder=Yes\0";

/// Limit of a test that hangs.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    /// The next response.
    response: Option<LoginResponse>,
    stat_sn: u32,
}

pub(crate) fn options() -> Options {
    Options::new("iqn.2026-01.example:host", "iqn.2026-01.example:disk").timeout(TIMEOUT)
}

/// Logs in at a target that runs a script. The connection is closed when both are done.
pub(crate) fn run(
    options: &Options,
    script: impl FnOnce(&mut Peer) + Send,
) -> Result<Negotiated, LoginError> {
    let (mut near, far) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let script = scope.spawn(|| script(&mut Peer::new(far)));
        let result = login(&mut near, options);
        drop(near);
        script.join().unwrap();
        result
    })
}

/// Answers the request of the security stage.
pub(crate) fn accept_security(peer: &mut Peer) {
    peer.request();
    peer.respond("AuthMethod=None\0");
}

impl Peer {
    pub(crate) fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { stream, response: None, stat_sn: u32::MAX }
    }

    /// Receives a request and its text, and prepares a response that accepts it.
    pub(crate) fn request(&mut self) -> (LoginRequest, String) {
        self.try_request().unwrap()
    }

    /// Does the same, and returns `None` if the initiator has closed the connection.
    pub(crate) fn try_request(&mut self) -> Option<(LoginRequest, String)> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header).ok()?;
        let layout = PduLayout::of(&header, Digests::default());
        let mut text = vec![0; layout.data + layout.trailer_len()];
        self.stream.read_exact(&mut text).unwrap();
        text.truncate(layout.data);
        let InitiatorPdu::LoginRequest(request) = InitiatorPdu::parse(&header).unwrap() else { panic!() };
        let LoginRequest { next, stage, isid, task, cmd_sn, .. } = request;
        let numbers = SequenceNumbers { stat_sn: self.stat_sn, exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn + 31 };
        let (continues, tsih, status) = (false, 77, [0, 0]);
        self.response = Some(LoginResponse { next, continues, stage, isid, tsih, task, numbers, status });
        self.stat_sn = self.stat_sn.wrapping_add(1);
        Some((request, String::from_utf8(text).unwrap()))
    }

    /// Changes the next response.
    pub(crate) fn adjust(&mut self, change: impl FnOnce(&mut LoginResponse)) {
        change(self.response.as_mut().unwrap());
    }

    /// Sends the response.
    pub(crate) fn respond(&mut self, text: &str) {
        let pdu = self.encode(text);
        self.send(&pdu);
    }

    /// Returns the bytes of the response.
    pub(crate) fn encode(&mut self, text: &str) -> Vec<u8> {
        let response = TargetPdu::LoginResponse(self.response.take().unwrap());
        let mut pdu = response.emit(u32::try_from(text.len()).unwrap()).to_vec();
        pdu.extend_from_slice(text.as_bytes());
        pdu.resize(pdu.len() + padding(text.len()), 0);
        pdu
    }

    /// Sends bytes, unless the initiator has closed the connection.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }
}
