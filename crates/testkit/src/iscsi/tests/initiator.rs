//! An initiator that sends single PDUs, right or wrong.

use super::super::{BLOCK, NAME, Target};
use ironwarp_wire::iscsi::{
    Command, Digests, HEADER_LEN, InitiatorPdu, LoginRequest, PduLayout, Stage, TargetPdu, padding,
    set_exp_stat_sn,
};
use ironwarp_wire::mpa::Crc;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection to the target.
pub(super) struct Initiator {
    stream: TcpStream,
    pub(super) digests: Digests,
    /// CmdSN of the next command.
    pub(super) cmd_sn: u32,
    exp_stat_sn: u32,
}

/// What was received.
#[derive(Debug, PartialEq)]
pub(super) struct Received {
    pub(super) pdu: TargetPdu,
    pub(super) data: Vec<u8>,
    /// Whether both digests are valid.
    pub(super) is_valid: bool,
}

impl Initiator {
    /// Logs in with these keys, in one step. Returns the target's keys, too.
    pub(super) fn log_in(target: &Target, keys: &[&str]) -> (Self, Vec<String>) {
        let stream = TcpStream::connect(target.addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut this = Self { stream, digests: Digests::default(), cmd_sn: 0xffff_fffe, exp_stat_sn: 0 };
        let names = ["InitiatorName=iqn.test", &format!("TargetName={NAME}")].map(str::to_owned);
        let text: String = names
            .iter()
            .map(String::as_str)
            .chain(keys.iter().copied())
            .map(|it| format!("{it}\0"))
            .collect();
        this.send(
            InitiatorPdu::LoginRequest(LoginRequest {
                next: Some(Stage::FullFeature),
                continues: false,
                stage: Stage::Operational,
                isid: [0x80, 0, 0, 0, 0, 1],
                tsih: 0,
                task: 1,
                cid: 0,
                cmd_sn: this.cmd_sn,
                exp_stat_sn: 0,
            }),
            text.as_bytes(),
        );
        let Received { pdu: TargetPdu::LoginResponse(response), data, .. } = this.receive() else {
            panic!("not a login response");
        };
        assert_eq!((response.next, response.tsih, response.status), (Some(Stage::FullFeature), 1, [0, 0]));
        this.exp_stat_sn = response.numbers.stat_sn.wrapping_add(1);
        let text = String::from_utf8(data).unwrap();
        let answers: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
        let has = |key: &str| answers.iter().any(|it| it == key);
        this.digests = Digests { header: has("HeaderDigest=CRC32C"), data: has("DataDigest=CRC32C") };
        (this, answers)
    }

    /// Sends a PDU with the right digests. ExpStatSN is filled in.
    pub(super) fn send(&mut self, pdu: InitiatorPdu, data: &[u8]) {
        self.send_with(pdu, data, [0, 0]);
    }

    /// Sends a PDU. The digests of header and data are changed by XOR.
    pub(super) fn send_with(&mut self, pdu: InitiatorPdu, data: &[u8], [header_xor, data_xor]: [u8; 2]) {
        let digest = |bytes: &[u8], xor| Crc::of(bytes).to_bytes().map(|byte| byte ^ xor);
        let mut header = pdu.emit(u32::try_from(data.len()).unwrap());
        set_exp_stat_sn(&mut header, self.exp_stat_sn);
        let mut bytes = header.to_vec();
        if self.digests.header {
            bytes.extend(digest(&header, header_xor));
        }
        let data = [data, &[0; 3][..padding(data.len())]].concat();
        bytes.extend(&data);
        if self.digests.data && !data.is_empty() {
            bytes.extend(digest(&data, data_xor));
        }
        self.stream.write_all(&bytes).unwrap();
    }

    /// Sends a command for blocks of the disk: a READ(10) or a WRITE(10), with this task tag.
    pub(super) fn transfer(&mut self, task: u32, write: bool, last: bool, block: u8, count: u8, data: &[u8]) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[5], cdb[8]) = (if write { 0x2a } else { 0x28 }, block, count);
        let expected_len = u32::from(count) * u32::try_from(BLOCK).unwrap();
        self.command(Command { write, read: !write, last, expected_len, cdb, ..command(task) }, data);
    }

    /// Sends a command with the next CmdSN.
    pub(super) fn command(&mut self, command: Command, data: &[u8]) {
        self.send(InitiatorPdu::Command(Command { cmd_sn: self.cmd_sn, ..command }), data);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
    }

    /// Receives a PDU.
    pub(super) fn receive(&mut self) -> Received {
        self.try_receive().unwrap()
    }

    /// Receives a PDU, or the end of the connection.
    pub(super) fn try_receive(&mut self) -> io::Result<Received> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header)?;
        let layout = PduLayout::of(&header, self.digests);
        let mut rest = vec![0; layout.len() - HEADER_LEN];
        self.stream.read_exact(&mut rest)?;
        let (header_digest, data) = rest.split_at(layout.header_len() - HEADER_LEN);
        let (padded, data_digest) = data.split_at(layout.data + padding(layout.data));
        let is_valid = (header_digest.is_empty() || header_digest == Crc::of(&header).to_bytes())
            && (data_digest.is_empty() || data_digest == Crc::of(padded).to_bytes());
        let pdu = TargetPdu::parse(&header).unwrap();
        if let (numbers, true) = pdu.numbers() {
            self.exp_stat_sn = numbers.stat_sn.wrapping_add(1);
        }
        Ok(Received { pdu, data: data[..layout.data].to_vec(), is_valid })
    }

    /// Asserts that the target closes the connection.
    pub(super) fn assert_closed(&mut self) {
        let error = self.try_receive().unwrap_err().kind();
        assert!(matches!(error, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{error}");
    }
}

/// A command without data.
pub(super) fn command(task: u32) -> Command {
    Command {
        immediate: false,
        last: true,
        read: false,
        write: false,
        attribute: 1,
        lun: 0,
        task,
        expected_len: 0,
        cmd_sn: 0,
        exp_stat_sn: 0,
        cdb: [0; 16],
    }
}
