//! Wireshark's decoder understands every iSCSI PDU that the codec emits, with and without digests.
//!
//! tshark has no option for digests: it finds out from the first PDUs of a connection whether they end with a valid CRC.
//! Not checked is what it does not show: the target's tag of a Data-In without the A bit, the lengths of a Task Management
//! Function Response, and the data digest of a Reject.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::temporary;
use ironwarp_pcap::CaptureWriter;
use ironwarp_testkit::tshark::{ERRORS, tshark};
use ironwarp_wire::iscsi::{
    AsyncMessage, Command, DataIn, DataOut, Digests, HEADER_LEN, InitiatorPdu, LoginRequest, LoginResponse,
    LogoutRequest, LogoutResponse, NO_TASK, NopIn, NopOut, R2t, Reject, Residual, Response, SequenceNumbers,
    Stage, TargetPdu, TaskFunction, TaskRequest, TaskResponse, TextRequest, TextResponse, padding,
};
use ironwarp_wire::mpa::Crc;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Logical unit 3, as its first two bytes say.
const LUN: u64 = 0x0003_0000_0000_0000;
/// Task tags of the initiator and of the target.
const TASK: u32 = 0x1111_0001;
const TARGET_TASK: u32 = 0x7777_0001;
const CMD_SN: u32 = 0x0c00_0002;
const EXP_STAT_SN: u32 = 0x0500_0001;
const NUMBERS: SequenceNumbers =
    SequenceNumbers { stat_sn: EXP_STAT_SN, exp_cmd_sn: 0x0e00_0001, max_cmd_sn: 0x0a00_0041 };
/// Opcodes of PDUs that tshark shows incompletely (see the top of this file).
const TASK_RESPONSE: u64 = 0x22;
const REJECT: u64 = 0x3f;
/// Number of PDUs that belong to the login, which has no digests.
const LOGIN: usize = 2;
/// Sense data in fixed format, after its length: ILLEGAL REQUEST, invalid command operation code.
const SENSE: [u8; 20] = [0, 18, 0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];

/// Values of fields, by tshark's names.
type Fields = BTreeMap<String, u64>;

/// A PDU with its data, and all fields that tshark must show.
struct Sample {
    from_initiator: bool,
    header: [u8; HEADER_LEN],
    data: Vec<u8>,
    fields: Fields,
}

impl Sample {
    /// A PDU of the initiator. `fields` are without those that all or most have: these are added.
    fn initiator(pdu: InitiatorPdu, data: &[u8], opcode: u64, fields: &[(&str, u64)]) -> Self {
        let header = pdu.emit(u32::try_from(data.len()).unwrap());
        let mut sample = Self::new(true, header, data, opcode, fields);
        sample.set("iscsi.expstatsn", EXP_STAT_SN.into());
        if opcode != 5 {
            sample.set("iscsi.cmdsn", CMD_SN.into());
        }
        sample
    }

    /// A PDU of the target, in the same way.
    fn target(pdu: TargetPdu, data: &[u8], opcode: u64, fields: &[(&str, u64)]) -> Self {
        let header = pdu.emit(u32::try_from(data.len()).unwrap());
        let mut sample = Self::new(false, header, data, opcode, fields);
        sample.set("iscsi.statsn", NUMBERS.stat_sn.into());
        sample.set("iscsi.expcmdsn", NUMBERS.exp_cmd_sn.into());
        sample.set("iscsi.maxcmdsn", NUMBERS.max_cmd_sn.into());
        sample
    }

    fn new(
        from_initiator: bool,
        header: [u8; HEADER_LEN],
        data: &[u8],
        opcode: u64,
        fields: &[(&str, u64)],
    ) -> Self {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let mut sample = Self { from_initiator, header, data: data.to_vec(), fields };
        sample.set("iscsi.opcode", opcode);
        if opcode != TASK_RESPONSE {
            sample.set("iscsi.totalahslength", 0);
            sample.set("iscsi.datasegmentlength", data.len().try_into().unwrap());
        }
        sample
    }

    fn set(&mut self, name: &str, value: u64) {
        self.fields.insert(name.to_owned(), value);
    }

    /// Returns the bytes on the wire, with padding and digests.
    fn bytes(&self, digests: Digests) -> Vec<u8> {
        let mut bytes = self.header.to_vec();
        if digests.header {
            bytes.extend(Crc::of(&self.header).to_bytes());
        }
        let data = [&self.data[..], &[0; 3][..padding(self.data.len())]].concat();
        bytes.extend(&data);
        if digests.data && !data.is_empty() {
            bytes.extend(Crc::of(&data).to_bytes());
        }
        bytes
    }
}

fn login() -> [Sample; LOGIN] {
    let isid = [0x80, 0x12, 0x34, 0x56, 0x78, 0x9a];
    let request = LoginRequest {
        next: Some(Stage::FullFeature),
        continues: false,
        stage: Stage::Operational,
        isid,
        tsih: 0x0123,
        task: TASK,
        cid: 7,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
    };
    let response = LoginResponse {
        next: Some(Stage::Operational),
        continues: false,
        stage: Stage::Security,
        isid,
        tsih: 0x0123,
        task: TASK,
        numbers: NUMBERS,
        status: [2, 3],
    };
    let both = [
        ("iscsi.login.T", 1),
        ("iscsi.login.C", 0),
        ("iscsi.versionmax", 0),
        ("iscsi.isid.t", 2),
        ("iscsi.isid.a", 0),
        ("iscsi.isid.b", 0x1234),
        ("iscsi.isid.c", 0x56),
        ("iscsi.isid.d", 0x789a),
        ("iscsi.tsih", 0x123),
        ("iscsi.initiatortasktag", TASK.into()),
    ];
    let requested =
        [("iscsi.versionmin", 0), ("iscsi.login.csg", 1), ("iscsi.login.nsg", 3), ("iscsi.cid", 7)];
    let responded = [
        ("iscsi.versionactive", 0),
        ("iscsi.login.csg", 0),
        ("iscsi.login.nsg", 1),
        ("iscsi.login.status", 0x0203),
    ];
    [
        Sample::initiator(
            InitiatorPdu::LoginRequest(request),
            b"InitiatorName=iqn.test\0",
            3,
            &[&both[..], &requested].concat(),
        ),
        Sample::target(
            TargetPdu::LoginResponse(response),
            b"TargetPortalGroupTag=1\0",
            0x23,
            &[&both[..], &responded].concat(),
        ),
    ]
}

/// A READ(10) of two blocks, and its data.
fn read() -> [Sample; 3] {
    let command = Command {
        immediate: false,
        last: true,
        read: true,
        write: false,
        attribute: 1,
        lun: LUN,
        task: TASK,
        expected_len: 1024,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
        cdb: [0x28, 0, 0, 0, 0x12, 0x34, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
    };
    let data = DataIn {
        last: false,
        acknowledge: true,
        status: None,
        lun: LUN,
        task: TASK,
        target_task: TARGET_TASK,
        numbers: NUMBERS,
        data_sn: 3,
        offset: 0,
    };
    let residual = Some((0, Residual::Underflow(3)));
    let end = DataIn { last: true, acknowledge: false, status: residual, data_sn: 4, offset: 512, ..data };
    let common = [("iscsi.initiatortasktag", TASK.into()), ("scsi.lun", 3), ("scsi_sbc.opcode", 0x28)];
    let commanded = [
        ("iscsi.I", 0),
        ("iscsi.scsicommand.F", 1),
        ("iscsi.scsicommand.R", 1),
        ("iscsi.scsicommand.W", 0),
        ("iscsi.scsicommand.attr", 1),
        ("iscsi.scsicommand.expecteddatatransferlength", 1024),
        ("scsi_sbc.rdwr10.lba", 0x1234),
        ("scsi_sbc.rdwr10.xferlen", 2),
    ];
    let data_in = |flags: [u64; 5], data_sn, offset, residual| {
        let names = ["F", "A", "O", "U", "S"].map(|it| format!("iscsi.scsidata.{it}"));
        let fields = [
            ("iscsi.datasn", data_sn),
            ("iscsi.bufferOffset", offset),
            ("iscsi.scsidata.readresidualcount", residual),
        ];
        let flags = names.iter().map(String::as_str).zip(flags);
        common.iter().chain(&fields).copied().chain(flags).map(|(name, it)| (name.to_owned(), it)).collect()
    };
    let mut samples = [
        Sample::initiator(InitiatorPdu::Command(command), &[], 1, &[&common[..], &commanded].concat()),
        Sample::target(
            TargetPdu::DataIn(data),
            &[0x5a; 512],
            0x25,
            &[("iscsi.targettransfertag", TARGET_TASK.into())],
        ),
        Sample::target(TargetPdu::DataIn(end), &[0xa5; 509], 0x25, &[("iscsi.scsiresponse.status", 0)]),
    ];
    let more: [Fields; 2] = [data_in([0, 1, 0, 0, 0], 3, 0, 0), data_in([1, 0, 0, 1, 1], 4, 512, 3)];
    samples[1..].iter_mut().zip(more).for_each(|(sample, fields)| sample.fields.extend(fields));
    samples
}

/// A WRITE(10) of three blocks with immediate data, which fails.
fn write() -> [Sample; 4] {
    let command = Command {
        immediate: true,
        last: true,
        read: false,
        write: true,
        attribute: 2,
        lun: LUN,
        task: TASK + 1,
        expected_len: 1536,
        cmd_sn: CMD_SN,
        exp_stat_sn: EXP_STAT_SN,
        cdb: [0x2a, 0, 0, 0, 0x56, 0x78, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
    };
    let (lun, task, target_task, offset) = (LUN, TASK + 1, TARGET_TASK, 511);
    let r2t = R2t { lun, task, target_task, numbers: NUMBERS, r2t_sn: 2, offset, len: 1025 };
    let data = DataOut { last: true, lun, task, target_task, exp_stat_sn: EXP_STAT_SN, data_sn: 5, offset };
    let residual = Residual::Overflow(9);
    let response = Response { residual, response: 0, status: 2, task, numbers: NUMBERS, exp_data_sn: 6 };
    let common = [("iscsi.initiatortasktag", task.into()), ("scsi.lun", 3)];
    let operation = [("scsi_sbc.opcode", 0x2a)];
    let place = [("iscsi.targettransfertag", target_task.into()), ("iscsi.bufferOffset", offset.into())];
    let commanded = [
        ("iscsi.I", 1),
        ("iscsi.scsicommand.F", 1),
        ("iscsi.scsicommand.R", 0),
        ("iscsi.scsicommand.W", 1),
        ("iscsi.scsicommand.attr", 2),
        ("iscsi.scsicommand.expecteddatatransferlength", 1536),
        ("scsi_sbc.rdwr10.lba", 0x5678),
        ("scsi_sbc.rdwr10.xferlen", 3),
    ];
    let asked = [("iscsi.r2tsn", 2), ("iscsi.desireddatalength", 1025)];
    let sent = [("iscsi.scsidata.F", 1), ("iscsi.datasn", 5)];
    let responded = [
        ("iscsi.scsiresponse.o", 0),
        ("iscsi.scsiresponse.u", 0),
        ("iscsi.scsiresponse.O", 1),
        ("iscsi.scsiresponse.U", 0),
        ("iscsi.scsiresponse.response", 0),
        ("iscsi.scsiresponse.status", 2),
        ("iscsi.scsiresponse.bidireadresidualcount", 0),
        ("iscsi.scsiresponse.residualcount", 9),
        ("iscsi.scsiresponse.senselength", 18),
        ("iscsi.expdatasn", 6),
        ("scsi.sns.key", 5),
    ];
    let all = |parts: &[&[(&'static str, u64)]]| [&common[..], &parts.concat()].concat();
    [
        Sample::initiator(InitiatorPdu::Command(command), &[7; 511], 1, &all(&[&operation, &commanded])),
        Sample::target(TargetPdu::R2t(r2t), &[], 0x31, &all(&[&place, &asked])),
        Sample::initiator(InitiatorPdu::DataOut(data), &[8; 1025], 5, &all(&[&operation, &place, &sent])),
        Sample::target(TargetPdu::Response(response), &SENSE, 0x21, &all(&[&responded])),
    ]
}

fn pings_and_texts() -> [Sample; 4] {
    let (lun, task, target_task, numbers) = (LUN, TASK + 2, TARGET_TASK, NUMBERS);
    let (cmd_sn, exp_stat_sn) = (CMD_SN, EXP_STAT_SN);
    let nop_out = NopOut { immediate: true, lun, task, target_task: NO_TASK, cmd_sn, exp_stat_sn };
    let nop_in = NopIn { lun, task: NO_TASK, target_task, numbers };
    let request = TextRequest {
        immediate: false,
        last: true,
        continues: false,
        lun,
        task,
        target_task: NO_TASK,
        cmd_sn,
        exp_stat_sn,
    };
    let response = TextResponse { last: false, continues: true, lun, task, target_task, numbers };
    let tags = |task: u32, target_task: u32| {
        [
            ("scsi.lun", 3),
            ("iscsi.initiatortasktag", task.into()),
            ("iscsi.targettransfertag", target_task.into()),
        ]
    };
    let requested = [("iscsi.I", 0), ("iscsi.text.F", 1), ("iscsi.text.C", 0)];
    let responded = [("iscsi.text.F", 0), ("iscsi.text.C", 1)];
    [
        Sample::initiator(
            InitiatorPdu::NopOut(nop_out),
            b"ping",
            0,
            &[&tags(task, NO_TASK)[..], &[("iscsi.I", 1)]].concat(),
        ),
        Sample::target(TargetPdu::NopIn(nop_in), &[], 0x20, &tags(NO_TASK, target_task)),
        Sample::initiator(
            InitiatorPdu::TextRequest(request),
            b"SendTargets=All\0",
            4,
            &[&tags(task, NO_TASK)[..], &requested].concat(),
        ),
        Sample::target(
            TargetPdu::TextResponse(response),
            b"TargetName=iqn.disk\0",
            0x24,
            &[&tags(task, target_task)[..], &responded].concat(),
        ),
    ]
}

fn management() -> [Sample; 6] {
    let (lun, task, numbers, cmd_sn, exp_stat_sn) = (LUN, TASK + 3, NUMBERS, CMD_SN, EXP_STAT_SN);
    let request = TaskRequest {
        immediate: true,
        function: TaskFunction::AbortTask,
        lun,
        task,
        referenced_task: TASK,
        cmd_sn,
        exp_stat_sn,
        referenced_cmd_sn: 0x0c00_0001,
    };
    let response = TaskResponse { response: 5, task, numbers };
    let logout = LogoutRequest { immediate: true, reason: 1, task, cid: 7, cmd_sn, exp_stat_sn };
    let left = LogoutResponse { response: 2, task, numbers, time_to_wait: 0x0102, time_to_retain: 0x0304 };
    let message = AsyncMessage { lun, numbers, event: 2, vendor_code: 0xfe, parameters: [11, 12, 13] };
    let reject = Reject { reason: 4, numbers, data_sn: 14 };
    let tag = ("iscsi.initiatortasktag", task.into());
    let requested = [
        tag,
        ("iscsi.I", 1),
        ("scsi.lun", 3),
        ("iscsi.taskmanfun.function", 1),
        ("iscsi.taskmanfun.referencedtasktag", TASK.into()),
        ("iscsi.refcmdsn", 0x0c00_0001),
    ];
    let times = [("iscsi.time2wait", 0x0102), ("iscsi.time2retain", 0x0304)];
    let told = [
        ("scsi.lun", 3),
        ("iscsi.asyncevent", 2),
        ("iscsi.eventvendorcode", 0xfe),
        ("iscsi.parameter1", 11),
        ("iscsi.parameter2", 12),
        ("iscsi.parameter3", 13),
    ];
    [
        Sample::initiator(InitiatorPdu::TaskRequest(request), &[], 2, &requested),
        Sample::target(
            TargetPdu::TaskResponse(response),
            &[],
            TASK_RESPONSE,
            &[tag, ("iscsi.taskmanfun.response", 5)],
        ),
        Sample::target(TargetPdu::AsyncMessage(message), &[], 0x32, &told),
        Sample::target(
            TargetPdu::Reject(reject),
            &InitiatorPdu::TaskRequest(request).emit(0),
            REJECT,
            &[("iscsi.reject.reason", 4), ("iscsi.datasn", 14)],
        ),
        Sample::initiator(
            InitiatorPdu::LogoutRequest(logout),
            &[],
            6,
            &[tag, ("iscsi.I", 1), ("iscsi.logout.reason", 1), ("iscsi.cid", 7)],
        ),
        Sample::target(
            TargetPdu::LogoutResponse(left),
            &[],
            0x26,
            &[&[tag, ("iscsi.logout.response", 2)], &times[..]].concat(),
        ),
    ]
}

/// One PDU of each kind at least.
fn samples() -> Vec<Sample> {
    login().into_iter().chain(read()).chain(write()).chain(pings_and_texts()).chain(management()).collect()
}

/// Both digests, one of them, and none.
fn all_digests() -> [Digests; 4] {
    [(false, false), (false, true), (true, false), (true, true)]
        .map(|(header, data)| Digests { header, data })
}

/// Writes a capture with one connection for each combination of digests. Each PDU is a packet.
fn capture(name: &str, samples: &[Sample]) -> PathBuf {
    let path = temporary(name);
    let mut writer = CaptureWriter::new(Vec::new()).unwrap();
    for (port, digests) in (40_000..).zip(all_digests()) {
        let (client, server) = (SocketAddr::from(([10, 0, 0, 1], port)), ([10, 0, 0, 2], 3260).into());
        let mut connection = writer.open(Duration::ZERO, client, server).unwrap();
        for (index, sample) in samples.iter().enumerate() {
            let bytes = sample.bytes(if index < LOGIN { Digests::default() } else { digests });
            writer.send(Duration::ZERO, &mut connection, sample.from_initiator, &bytes).unwrap();
        }
        writer.close(Duration::ZERO, connection).unwrap();
    }
    std::fs::write(&path, writer.into_inner()).unwrap();
    path
}

/// Fields that tshark computes, that repeat others, or that are data.
const IGNORED: [&str; 8] = [
    "iscsi.request_frame",
    "iscsi.response_frame",
    "iscsi.data_in_frame",
    "iscsi.data_out_frame",
    "iscsi.time",
    "iscsi.flags",
    "iscsi.padding",
    "iscsi.pingdata",
];

/// What tshark shows of a PDU: fields, and whether each digest is there and valid.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    fields: Fields,
    header_digest: Option<bool>,
    data_digest: Option<bool>,
}

/// Returns what tshark shows of each PDU. Of the SCSI fields, only those that some sample names.
fn shown(pdml: &str, samples: &[Sample]) -> Vec<Shown> {
    let (mut pdus, mut in_reject): (Vec<Shown>, bool) = (Vec::new(), false);
    for line in pdml.lines() {
        match line.split_once("<proto name=\"iscsi\"") {
            Some(("  ", _)) => pdus.push(Shown::default()),
            Some(_) => in_reject = true, // the header that a Reject returns
            None if line == "      </proto>" => in_reject = false,
            None => {}
        }
        if in_reject {
            continue;
        }
        let Some(name) = attribute(line, "field name") else { continue };
        let Some(pdu) = pdus.last_mut() else { continue };
        let valid = || Some(line.contains("(Good CRC32)"));
        match name {
            "iscsi.headerdigest32" => pdu.header_digest = valid(),
            "iscsi.datadigest32" => pdu.data_digest = valid(),
            _ if IGNORED.contains(&name) => {}
            _ if name.starts_with("iscsi.") || samples.iter().any(|it| it.fields.contains_key(name)) => {
                let value = attribute(line, "show").unwrap();
                let number = match value.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16),
                    None => value.parse(),
                };
                number.into_iter().for_each(|number| _ = pdu.fields.entry(name.to_owned()).or_insert(number));
            }
            _ => {}
        }
    }
    pdus
}

fn attribute<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("{name}=\""))?;
    rest.split('"').next()
}

#[test]
fn every_pdu_is_decoded_as_it_was_meant() {
    let samples = samples();
    let path = capture("iscsi.pcap", &samples);
    let found = shown(&tshark(&path, &["-T", "pdml"]), &samples);
    assert_eq!(found.len(), all_digests().len() * samples.len(), "tshark sees a different number of PDUs");
    for (pdus, digests) in found.chunks(samples.len()).zip(all_digests()) {
        for (index, (found, sample)) in pdus.iter().zip(&samples).enumerate() {
            let negotiated = index >= LOGIN;
            let shows_data = !sample.data.is_empty() && sample.fields["iscsi.opcode"] != REJECT;
            let expected = Shown {
                fields: sample.fields.clone(),
                header_digest: (negotiated && digests.header).then_some(true),
                data_digest: (negotiated && digests.data && shows_data).then_some(true),
            };
            assert_eq!(found, &expected, "PDU {index} with {digests:?}");
        }
    }
    assert_eq!(tshark(&path, &["-Y", ERRORS]), "");
}

/// Verifies that these tests detect errors.
#[test]
fn a_wrong_digest_is_seen() {
    let samples = samples();
    let path = capture("iscsi-wrong.pcap", &samples);
    let mut file = std::fs::read(&path).unwrap();
    let data_in = samples[LOGIN + 2].bytes(Digests { header: true, data: true });
    let at = file.windows(data_in.len()).position(|it| it == data_in).unwrap();
    file[at + HEADER_LEN + 4 + 100] ^= 1;
    std::fs::write(&path, file).unwrap();
    let found = shown(&tshark(&path, &["-T", "pdml"]), &samples);
    let wrong: Vec<_> = found.iter().map(|it| (it.header_digest, it.data_digest)).collect();
    assert_eq!(wrong.iter().filter(|it| **it == (Some(true), Some(false))).count(), 1);
    assert_eq!(wrong.iter().filter(|it| it.0 == Some(false)).count(), 0);
}
