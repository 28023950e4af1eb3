//! Headers of iSCSI PDUs, compared with the figures of RFC 7143 §11, and properties that hold for all of them.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{hex, slow_crc};
use ironwarp_wire::iscsi::{
    AsyncMessage, BadPdu, Command, DataIn, DataOut, Digests, HEADER_LEN, InitiatorPdu, LoginRequest,
    LoginResponse, LogoutRequest, LogoutResponse, NO_TASK, NopIn, NopOut, PduLayout, R2t, Reject, Residual,
    Response, SequenceNumbers, Stage, TargetPdu, TaskFunction, TaskRequest, TaskResponse, TextRequest,
    TextResponse, padding, set_exp_stat_sn,
};
use ironwarp_wire::mpa::Crc;
use proptest::option;
use proptest::prelude::*;

type Bytes = [u8; HEADER_LEN];

const NUMBERS: SequenceNumbers =
    SequenceNumbers { stat_sn: 0x5151_0001, exp_cmd_sn: 0xe1e1_0002, max_cmd_sn: 0xa1a1_0003 };

fn header(text: &str) -> Bytes {
    hex(text).try_into().unwrap()
}

#[track_caller]
fn check_initiator(pdu: InitiatorPdu, data_len: u32, text: &str) {
    let bytes = header(text);
    assert_eq!(pdu.emit(data_len), bytes);
    assert_eq!(InitiatorPdu::parse(&bytes), Ok(pdu));
    let opcode = bytes[0] & 0x3f;
    assert_eq!(TargetPdu::parse(&bytes), Err(BadPdu::Opcode(opcode)), "a target must not send it");
}

#[track_caller]
fn check_target(pdu: TargetPdu, data_len: u32, text: &str) {
    let bytes = header(text);
    assert_eq!(pdu.emit(data_len), bytes);
    assert_eq!(TargetPdu::parse(&bytes), Ok(pdu));
    assert_eq!(InitiatorPdu::parse(&bytes), Err(BadPdu::Opcode(bytes[0])), "an initiator must not send it");
}

/// RFC 7143 §11.3: a READ(10) of 8 blocks, then a write for immediate delivery with immediate data.
#[test]
fn commands_have_the_bytes_of_the_figure() {
    let read = Command {
        immediate: false,
        last: true,
        read: true,
        write: false,
        attribute: 1,
        lun: 0x0001_0000_0000_0000,
        task: 0x1122_3344,
        expected_len: 4096,
        cmd_sn: 0xc0c0_0001,
        exp_stat_sn: 0x5e5e_0002,
        cdb: [0x28, 0, 0, 0, 0x12, 0x34, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0],
    };
    check_initiator(
        InitiatorPdu::Command(read),
        0,
        "01 c1 0000 00 000000 0001000000000000 11223344 00001000 c0c00001 5e5e0002 28000000 12340000 08000000 00000000",
    );
    let write = Command { immediate: true, last: false, read: false, write: true, attribute: 4, ..read };
    check_initiator(
        InitiatorPdu::Command(write),
        0x01_0203,
        "41 24 0000 00 010203 0001000000000000 11223344 00001000 c0c00001 5e5e0002 28000000 12340000 08000000 00000000",
    );
}

/// RFC 7143 §11.12: from the security stage to the operational one.
#[test]
fn login_requests_have_the_bytes_of_the_figure() {
    let login = LoginRequest {
        next: Some(Stage::Operational),
        continues: false,
        stage: Stage::Security,
        isid: [0x80, 0x12, 0x34, 0x56, 0x78, 0x9a],
        tsih: 0xbcde,
        task: 0x1122_3344,
        cid: 0xc1d0,
        cmd_sn: 1,
        exp_stat_sn: 2,
    };
    check_initiator(
        InitiatorPdu::LoginRequest(login),
        0x99,
        "43 81 00 00 00 000099 80123456789a bcde 11223344 c1d0 0000 00000001 00000002 00000000 00000000 00000000 00000000",
    );
    let continued = LoginRequest { next: None, continues: true, stage: Stage::Operational, ..login };
    check_initiator(
        InitiatorPdu::LoginRequest(continued),
        0x99,
        "43 44 00 00 00 000099 80123456789a bcde 11223344 c1d0 0000 00000001 00000002 00000000 00000000 00000000 00000000",
    );
}

/// RFC 7143 §11.5, §11.7, §11.10, §11.14 and §11.18.
#[test]
fn other_pdus_of_initiators_have_the_bytes_of_the_figures() {
    let (task, target_task, cmd_sn, exp_stat_sn) = (0x1122_3344, 0x7777_0001, 1, 2);
    let lun = 0x0001_0000_0000_0000;
    check_initiator(
        InitiatorPdu::NopOut(NopOut {
            immediate: true,
            lun,
            task: NO_TASK,
            target_task,
            cmd_sn,
            exp_stat_sn,
        }),
        0,
        "40 80 0000 00 000000 0001000000000000 ffffffff 77770001 00000001 00000002 00000000 00000000 00000000 00000000",
    );
    check_initiator(
        InitiatorPdu::TaskRequest(TaskRequest {
            immediate: true,
            function: TaskFunction::AbortTask,
            lun,
            task,
            referenced_task: 0x5566_7788,
            cmd_sn,
            exp_stat_sn,
            referenced_cmd_sn: 0xc0de,
        }),
        0,
        "42 81 0000 00 000000 0001000000000000 11223344 55667788 00000001 00000002 0000c0de 00000000 00000000 00000000",
    );
    let text = TextRequest {
        immediate: false,
        last: true,
        continues: false,
        lun: 0,
        task,
        target_task: NO_TASK,
        cmd_sn,
        exp_stat_sn,
    };
    check_initiator(
        InitiatorPdu::TextRequest(text),
        16,
        "04 80 0000 00 000010 0000000000000000 11223344 ffffffff 00000001 00000002 00000000 00000000 00000000 00000000",
    );
    check_initiator(
        InitiatorPdu::TextRequest(TextRequest { last: false, continues: true, ..text }),
        16,
        "04 40 0000 00 000010 0000000000000000 11223344 ffffffff 00000001 00000002 00000000 00000000 00000000 00000000",
    );
    check_initiator(
        InitiatorPdu::DataOut(DataOut {
            last: true,
            lun,
            task,
            target_task,
            exp_stat_sn,
            data_sn: 3,
            offset: 0x4000,
        }),
        0x2000,
        "05 80 0000 00 002000 0001000000000000 11223344 77770001 00000000 00000002 00000000 00000003 00004000 00000000",
    );
    check_initiator(
        InitiatorPdu::LogoutRequest(LogoutRequest {
            immediate: true,
            reason: 1,
            task,
            cid: 0xc1d0,
            cmd_sn,
            exp_stat_sn,
        }),
        0,
        "46 81 0000 00 000000 0000000000000000 11223344 c1d0 0000 00000001 00000002 00000000 00000000 00000000 00000000",
    );
}

/// RFC 7143 §11.7: with and without a status.
#[test]
fn data_in_has_the_bytes_of_the_figure() {
    let middle = DataIn {
        last: false,
        acknowledge: false,
        status: None,
        lun: 0,
        task: 0x1122_3344,
        target_task: NO_TASK,
        numbers: SequenceNumbers { stat_sn: 0, ..NUMBERS },
        data_sn: 4,
        offset: 0x8000,
    };
    check_target(
        TargetPdu::DataIn(middle),
        0x2000,
        "25 00 00 00 00 002000 0000000000000000 11223344 ffffffff 00000000 e1e10002 a1a10003 00000004 00008000 00000000",
    );
    let end =
        DataIn { last: true, status: Some((4, Residual::Underflow(0x200))), numbers: NUMBERS, ..middle };
    check_target(
        TargetPdu::DataIn(end),
        0x1e00,
        "25 83 00 04 00 001e00 0000000000000000 11223344 ffffffff 51510001 e1e10002 a1a10003 00000004 00008000 00000200",
    );
    let acknowledged = DataIn {
        acknowledge: true,
        status: Some((0, Residual::Overflow(7))),
        lun: 0x0001_0000_0000_0000,
        target_task: 0x7777_0001,
        ..end
    };
    check_target(
        TargetPdu::DataIn(acknowledged),
        0x1e00,
        "25 c5 00 00 00 001e00 0001000000000000 11223344 77770001 51510001 e1e10002 a1a10003 00000004 00008000 00000007",
    );
}

/// RFC 7143 §11.8 and §11.4.
#[test]
fn r2t_and_response_have_the_bytes_of_the_figures() {
    check_target(
        TargetPdu::R2t(R2t {
            lun: 0x0001_0000_0000_0000,
            task: 0x1122_3344,
            target_task: 0x7777_0001,
            numbers: NUMBERS,
            r2t_sn: 5,
            offset: 0x4000,
            len: 0x4_0000,
        }),
        0,
        "31 80 0000 00 000000 0001000000000000 11223344 77770001 51510001 e1e10002 a1a10003 00000005 00004000 00040000",
    );
    let response = Response {
        residual: Residual::None,
        response: 1,
        status: 2,
        task: 0x1122_3344,
        numbers: NUMBERS,
        exp_data_sn: 6,
    };
    check_target(
        TargetPdu::Response(response),
        20,
        "21 80 01 02 00 000014 0000000000000000 11223344 00000000 51510001 e1e10002 a1a10003 00000006 00000000 00000000",
    );
    check_target(
        TargetPdu::Response(Response { residual: Residual::Overflow(9), ..response }),
        20,
        "21 84 01 02 00 000014 0000000000000000 11223344 00000000 51510001 e1e10002 a1a10003 00000006 00000000 00000009",
    );
    check_target(
        TargetPdu::Response(Response { residual: Residual::Underflow(9), ..response }),
        20,
        "21 82 01 02 00 000014 0000000000000000 11223344 00000000 51510001 e1e10002 a1a10003 00000006 00000000 00000009",
    );
}

/// RFC 7143 §11.6, §11.9, §11.11, §11.13, §11.15, §11.17 and §11.19.
#[test]
fn other_pdus_of_targets_have_the_bytes_of_the_figures() {
    let (task, target_task, numbers, lun) = (0x1122_3344, 0x7777_0001, NUMBERS, 0x0001_0000_0000_0000);
    check_target(
        TargetPdu::NopIn(NopIn { lun, task: NO_TASK, target_task, numbers }),
        0,
        "20 80 0000 00 000000 0001000000000000 ffffffff 77770001 51510001 e1e10002 a1a10003 00000000 00000000 00000000",
    );
    check_target(
        TargetPdu::TaskResponse(TaskResponse { response: 5, task, numbers }),
        0,
        "22 80 05 00 00 000000 0000000000000000 11223344 00000000 51510001 e1e10002 a1a10003 00000000 00000000 00000000",
    );
    check_target(
        TargetPdu::LoginResponse(LoginResponse {
            next: Some(Stage::FullFeature),
            continues: false,
            stage: Stage::Operational,
            isid: [0x80, 0x12, 0x34, 0x56, 0x78, 0x9a],
            tsih: 0xbcde,
            task,
            numbers,
            status: [2, 3],
        }),
        8,
        "23 87 00 00 00 000008 80123456789a bcde 11223344 00000000 51510001 e1e10002 a1a10003 0203 0000 00000000 00000000",
    );
    check_target(
        TargetPdu::TextResponse(TextResponse {
            last: true,
            continues: true,
            lun,
            task,
            target_task,
            numbers,
        }),
        8,
        "24 c0 0000 00 000008 0001000000000000 11223344 77770001 51510001 e1e10002 a1a10003 00000000 00000000 00000000",
    );
    let (time_to_wait, time_to_retain) = (0x0102, 0x0304);
    check_target(
        TargetPdu::LogoutResponse(LogoutResponse {
            response: 3,
            task,
            numbers,
            time_to_wait,
            time_to_retain,
        }),
        0,
        "26 80 03 00 00 000000 0000000000000000 11223344 00000000 51510001 e1e10002 a1a10003 00000000 0102 0304 00000000",
    );
    let (event, vendor_code, parameters) = (2, 0xfe, [0x0102, 0x0304, 0x0506]);
    check_target(
        TargetPdu::AsyncMessage(AsyncMessage { lun, numbers, event, vendor_code, parameters }),
        0,
        "32 80 0000 00 000000 0001000000000000 ffffffff 00000000 51510001 e1e10002 a1a10003 02 fe 0102 0304 0506 00000000",
    );
    check_target(
        TargetPdu::Reject(Reject { reason: 4, numbers, data_sn: 8 }),
        48,
        "3f 80 04 00 00 000030 0000000000000000 ffffffff 00000000 51510001 e1e10002 a1a10003 00000008 00000000 00000000",
    );
}

#[test]
fn reserved_values_are_refused() {
    let reserved = |field, value| Err(BadPdu::Reserved { field, value });
    let with = |opcode, flags| {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&[opcode, flags]);
        bytes
    };
    for function in [0, 9, 0x7f] {
        assert_eq!(InitiatorPdu::parse(&with(0x42, 0x80 | function)), reserved("Function", function).map(no));
    }
    assert_eq!(InitiatorPdu::parse(&with(0x43, 0x82)), reserved("NSG", 2).map(no));
    assert_eq!(InitiatorPdu::parse(&with(0x43, 0x08)), reserved("CSG", 2).map(no));
    assert_eq!(TargetPdu::parse(&with(0x23, 0x86)), reserved("NSG", 2).map(no));
    assert_eq!(TargetPdu::parse(&with(0x23, 0x8b)), reserved("CSG", 2).map(no));
    // RFC 7143 §11.4.1: O and U are mutually exclusive, §11.7.3: and mean nothing without S.
    assert_eq!(TargetPdu::parse(&with(0x21, 0x86)), reserved("O and U", 6).map(no));
    assert_eq!(TargetPdu::parse(&with(0x25, 0x87)), reserved("O and U", 6).map(no));
    assert!(TargetPdu::parse(&with(0x25, 0x86)).is_ok());
}

/// Gives an error the type of a PDU.
fn no<T>(never: std::convert::Infallible) -> T {
    match never {}
}

/// RFC 7143 §11.7.3, §11.8.3, §11.13.4 and §11.19.2.
#[test]
fn only_some_pdus_use_up_a_status_number() {
    let parse = |text: &str| TargetPdu::parse(&header(text)).unwrap().numbers();
    let zeros = "0000 00 000000 0000000000000000 ";
    let words = " 00000000 51510001 e1e10002 a1a10003 0000000000000000 00000000";
    for (first, task, counts) in [
        ("20 80", "00000000", true),
        ("20 80", "ffffffff", false),
        ("21 80", "00000000", true),
        ("22 80", "00000000", true),
        ("23 87", "00000000", true),
        ("24 80", "00000000", true),
        ("25 80", "00000000", false),
        ("25 81", "00000000", true),
        ("26 80", "00000000", true),
        ("31 80", "00000000", false),
        ("32 80", "ffffffff", true),
        ("3f 80", "ffffffff", true),
    ] {
        assert_eq!(parse(&format!("{first} {zeros}{task}{words}")), (NUMBERS, counts), "{first} {task}");
    }
    let refused = " 00000000 51510001 e1e10002 a1a10003 0201 0000 00000000 00000000";
    assert_eq!(parse(&format!("23 87 {zeros}00000000{refused}")), (NUMBERS, false));
}

/// RFC 7143 §A.4 gives digests as the bytes on the wire.
#[test]
fn digests_have_the_values_of_the_examples() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    let read = header(
        "01 c0 0000 00 000000 0000000000000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000",
    );
    for (bytes, digest) in [
        (&[0; 32][..], "aa 36 91 8a"),
        (&[0xff; 32], "43 ab a8 62"),
        (&ascending, "4e 79 dd 46"),
        (&descending, "5c db 3f 11"),
        (&read, "56 3a 96 d9"),
    ] {
        assert_eq!(Crc::of(bytes).to_bytes()[..], hex(digest));
        assert_eq!(slow_crc(bytes)[..], hex(digest));
    }
}

fn stage() -> impl Strategy<Value = Stage> {
    prop_oneof![Just(Stage::Security), Just(Stage::Operational), Just(Stage::FullFeature)]
}

fn function() -> impl Strategy<Value = TaskFunction> {
    use TaskFunction::{
        AbortTask, AbortTaskSet, ClearAca, ClearTaskSet, LogicalUnitReset, TargetColdReset, TargetWarmReset,
        TaskReassign,
    };
    prop::sample::select(vec![
        AbortTask,
        AbortTaskSet,
        ClearAca,
        ClearTaskSet,
        LogicalUnitReset,
        TargetWarmReset,
        TargetColdReset,
        TaskReassign,
    ])
}

fn numbers() -> impl Strategy<Value = SequenceNumbers> {
    any::<(u32, u32, u32)>().prop_map(|(stat_sn, exp_cmd_sn, max_cmd_sn)| SequenceNumbers {
        stat_sn,
        exp_cmd_sn,
        max_cmd_sn,
    })
}

fn residual() -> impl Strategy<Value = Residual> {
    prop_oneof![
        Just(Residual::None),
        any::<u32>().prop_map(Residual::Overflow),
        any::<u32>().prop_map(Residual::Underflow)
    ]
}

fn command() -> impl Strategy<Value = InitiatorPdu> {
    (any::<[bool; 4]>(), 0..8_u8, any::<(u64, u32, u32, u32, u32, [u8; 16])>()).prop_map(
        |([immediate, last, read, write], attribute, (lun, task, expected_len, cmd_sn, exp_stat_sn, cdb))| {
            InitiatorPdu::Command(Command {
                immediate,
                last,
                read,
                write,
                attribute,
                lun,
                task,
                expected_len,
                cmd_sn,
                exp_stat_sn,
                cdb,
            })
        },
    )
}

fn login_request() -> impl Strategy<Value = InitiatorPdu> {
    (option::of(stage()), stage(), any::<(bool, [u8; 6], u16, u32, u16, u32, u32)>()).prop_map(
        |(next, stage, (continues, isid, tsih, task, cid, cmd_sn, exp_stat_sn))| {
            InitiatorPdu::LoginRequest(LoginRequest {
                next,
                continues,
                stage,
                isid,
                tsih,
                task,
                cid,
                cmd_sn,
                exp_stat_sn,
            })
        },
    )
}

fn initiator_pdu() -> impl Strategy<Value = InitiatorPdu> {
    prop_oneof![
        any::<(bool, u64, u32, u32, u32, u32)>().prop_map(
            |(immediate, lun, task, target_task, cmd_sn, exp_stat_sn)| {
                InitiatorPdu::NopOut(NopOut { immediate, lun, task, target_task, cmd_sn, exp_stat_sn })
            }
        ),
        command(),
        (function(), any::<(bool, u64, u32, u32, u32, u32, u32)>()).prop_map(
            |(function, (immediate, lun, task, referenced_task, cmd_sn, exp_stat_sn, referenced_cmd_sn))| {
                InitiatorPdu::TaskRequest(TaskRequest {
                    immediate,
                    function,
                    lun,
                    task,
                    referenced_task,
                    cmd_sn,
                    exp_stat_sn,
                    referenced_cmd_sn,
                })
            }
        ),
        login_request(),
        any::<([bool; 3], u64, u32, u32, u32, u32)>().prop_map(
            |([immediate, last, continues], lun, task, target_task, cmd_sn, exp_stat_sn)| {
                let text =
                    TextRequest { immediate, last, continues, lun, task, target_task, cmd_sn, exp_stat_sn };
                InitiatorPdu::TextRequest(text)
            }
        ),
        any::<(bool, u64, u32, u32, u32, u32, u32)>().prop_map(
            |(last, lun, task, target_task, exp_stat_sn, data_sn, offset)| {
                InitiatorPdu::DataOut(DataOut { last, lun, task, target_task, exp_stat_sn, data_sn, offset })
            }
        ),
        (0..0x80_u8, any::<(bool, u32, u16, u32, u32)>()).prop_map(
            |(reason, (immediate, task, cid, cmd_sn, exp_stat_sn))| {
                let logout = LogoutRequest { immediate, reason, task, cid, cmd_sn, exp_stat_sn };
                InitiatorPdu::LogoutRequest(logout)
            }
        ),
    ]
}

fn data_in() -> impl Strategy<Value = TargetPdu> {
    (option::of((any::<u8>(), residual())), numbers(), any::<([bool; 2], u64, u32, u32, u32, u32)>())
        .prop_map(|(status, numbers, ([last, acknowledge], lun, task, target_task, data_sn, offset))| {
            TargetPdu::DataIn(DataIn {
                last,
                acknowledge,
                status,
                lun,
                task,
                target_task,
                numbers,
                data_sn,
                offset,
            })
        })
}

fn login_response() -> impl Strategy<Value = TargetPdu> {
    (option::of(stage()), stage(), numbers(), any::<(bool, [u8; 6], u16, u32, [u8; 2])>()).prop_map(
        |(next, stage, numbers, (continues, isid, tsih, task, status))| {
            TargetPdu::LoginResponse(LoginResponse {
                next,
                continues,
                stage,
                isid,
                tsih,
                task,
                numbers,
                status,
            })
        },
    )
}

fn target_pdu() -> impl Strategy<Value = TargetPdu> {
    prop_oneof![
        (numbers(), any::<(u64, u32, u32)>()).prop_map(|(numbers, (lun, task, target_task))| {
            TargetPdu::NopIn(NopIn { lun, task, target_task, numbers })
        }),
        (residual(), numbers(), any::<(u8, u8, u32, u32)>()).prop_map(
            |(residual, numbers, (response, status, task, exp_data_sn))| {
                TargetPdu::Response(Response { residual, response, status, task, numbers, exp_data_sn })
            }
        ),
        (numbers(), any::<(u8, u32)>()).prop_map(|(numbers, (response, task))| {
            TargetPdu::TaskResponse(TaskResponse { response, task, numbers })
        }),
        login_response(),
        (numbers(), any::<([bool; 2], u64, u32, u32)>()).prop_map(
            |(numbers, ([last, continues], lun, task, target_task))| {
                TargetPdu::TextResponse(TextResponse { last, continues, lun, task, target_task, numbers })
            }
        ),
        data_in(),
        (numbers(), any::<(u8, u32, u16, u16)>()).prop_map(
            |(numbers, (response, task, time_to_wait, time_to_retain))| {
                let logout = LogoutResponse { response, task, numbers, time_to_wait, time_to_retain };
                TargetPdu::LogoutResponse(logout)
            }
        ),
        (numbers(), any::<(u64, u32, u32, u32, u32, u32)>()).prop_map(
            |(numbers, (lun, task, target_task, r2t_sn, offset, len))| {
                TargetPdu::R2t(R2t { lun, task, target_task, numbers, r2t_sn, offset, len })
            }
        ),
        (numbers(), any::<(u64, u8, u8, [u16; 3])>()).prop_map(
            |(numbers, (lun, event, vendor_code, parameters))| {
                TargetPdu::AsyncMessage(AsyncMessage { lun, numbers, event, vendor_code, parameters })
            }
        ),
        (numbers(), any::<(u8, u32)>()).prop_map(|(numbers, (reason, data_sn))| TargetPdu::Reject(Reject {
            reason,
            numbers,
            data_sn
        })),
    ]
}

/// For each opcode, the bits of a header that the codec keeps: those that the figures of RFC 7143 §11 do not mark as
/// reserved or as constant. Not kept are TotalAHSLength, the versions of a login (always 0), and what serves the recovery of
/// single PDUs or bidirectional commands: SNACK Tag, ExpDataSN of a task request, Bidirectional Read Residual Count.
const KEPT: [(u8, &str); 17] = [
    (
        0x00,
        "7f 00 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff 00000000 00000000 00000000 00000000",
    ),
    (
        0x01,
        "7f e7 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff",
    ),
    (
        0x02,
        "7f 7f 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 00000000 00000000 00000000",
    ),
    (
        0x03,
        "3f cf 0000 00 ffffff ffffffffffffffff ffffffff ffff0000 ffffffff ffffffff 00000000 00000000 00000000 00000000",
    ),
    (
        0x04,
        "7f c0 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff 00000000 00000000 00000000 00000000",
    ),
    (
        0x05,
        "3f 80 0000 00 ffffff ffffffffffffffff ffffffff ffffffff 00000000 ffffffff 00000000 ffffffff ffffffff 00000000",
    ),
    (
        0x06,
        "7f 7f 0000 00 ffffff 0000000000000000 ffffffff ffff0000 ffffffff ffffffff 00000000 00000000 00000000 00000000",
    ),
    (
        0x20,
        "3f 00 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 00000000 00000000 00000000",
    ),
    (
        0x21,
        "3f 06 ffff 00 ffffff 0000000000000000 ffffffff 00000000 ffffffff ffffffff ffffffff ffffffff 00000000 ffffffff",
    ),
    (
        0x22,
        "3f 00 ff00 00 ffffff 0000000000000000 ffffffff 00000000 ffffffff ffffffff ffffffff 00000000 00000000 00000000",
    ),
    (
        0x23,
        "3f cf 0000 00 ffffff ffffffffffffffff ffffffff 00000000 ffffffff ffffffff ffffffff ffff0000 00000000 00000000",
    ),
    (
        0x24,
        "3f c0 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 00000000 00000000 00000000",
    ),
    (
        0x25,
        "3f c7 00ff 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff",
    ),
    (
        0x26,
        "3f 00 ff00 00 ffffff 0000000000000000 ffffffff 00000000 ffffffff ffffffff ffffffff 00000000 ffffffff 00000000",
    ),
    (
        0x31,
        "3f 00 0000 00 ffffff ffffffffffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff",
    ),
    (
        0x32,
        "3f 00 0000 00 ffffff ffffffffffffffff 00000000 00000000 ffffffff ffffffff ffffffff ffffffff ffffffff 00000000",
    ),
    (
        0x3f,
        "3f 00 ff00 00 ffffff 0000000000000000 00000000 00000000 ffffffff ffffffff ffffffff ffffffff 00000000 00000000",
    ),
];

/// Returns what the codec makes of a header: the bits that it keeps, and constants elsewhere.
fn normalized(bytes: &Bytes) -> Bytes {
    let opcode = bytes[0] & 0x3f;
    let (_, kept) = KEPT.iter().find(|(it, _)| *it == opcode).unwrap();
    let mut kept = header(kept);
    let flags = bytes[1];
    match opcode {
        // NSG is reserved if T is 0 (§11.12.3).
        3 | 0x23 if flags & 0x80 == 0 => kept[1] &= !3,
        // O, U, Status and Residual Count count only if S is 1 (§11.7.3).
        0x25 if flags & 1 == 0 => {
            kept[1] &= !6;
            kept[3] = 0;
            kept[44..].fill(0);
        }
        // The residual count is reserved without O and U (§11.4.5).
        0x21 | 0x25 if flags & 6 == 0 => kept[44..].fill(0),
        _ => {}
    }
    let mut bytes: Bytes = std::array::from_fn(|at| bytes[at] & kept[at]);
    if opcode == 3 {
        bytes[0] |= 0x40; // always immediate
    }
    if matches!(opcode, 0 | 2 | 6 | 0x20..=0x22 | 0x26 | 0x31 | 0x32 | 0x3f) {
        bytes[1] |= 0x80; // F is 1 in the figures
    }
    if matches!(opcode, 0x32 | 0x3f) {
        bytes[16..20].fill(0xff); // no task
    }
    bytes
}

/// Arbitrary bytes, mostly with a known opcode.
fn bytes() -> impl Strategy<Value = Bytes> {
    let known = prop::sample::select(KEPT.map(|(opcode, _)| opcode).to_vec());
    (option::weighted(0.9, known), any::<[u8; HEADER_LEN]>()).prop_map(|(opcode, mut bytes)| {
        if let Some(opcode) = opcode {
            bytes[0] = bytes[0] & 0xc0 | opcode;
        }
        bytes
    })
}

fn data_len(bytes: &Bytes) -> u32 {
    u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]])
}

proptest! {
    #[test]
    fn initiator_pdus_survive_the_wire(pdu in initiator_pdu(), len in 0..1_u32 << 24, exp_stat_sn: u32) {
        let mut bytes = pdu.emit(len);
        prop_assert_eq!(InitiatorPdu::parse(&bytes), Ok(pdu));
        prop_assert_eq!(data_len(&bytes), len);
        prop_assert_eq!(normalized(&bytes), bytes);
        // ExpStatSN can be set later, and only that.
        let before = bytes;
        set_exp_stat_sn(&mut bytes, exp_stat_sn);
        prop_assert_eq!(&bytes[28..32], exp_stat_sn.to_be_bytes());
        prop_assert_eq!((&bytes[..28], &bytes[32..]), (&before[..28], &before[32..]));
    }

    #[test]
    fn target_pdus_survive_the_wire(pdu in target_pdu(), len in 0..1_u32 << 24) {
        let bytes = pdu.emit(len);
        prop_assert_eq!(TargetPdu::parse(&bytes), Ok(pdu));
        prop_assert_eq!(data_len(&bytes), len);
        prop_assert_eq!(normalized(&bytes), bytes);
    }

    #[test]
    fn parsing_keeps_all_bits_that_mean_something(bytes in bytes()) {
        let opcode = bytes[0] & 0x3f;
        let known = KEPT.iter().any(|(it, _)| *it == opcode);
        match InitiatorPdu::parse(&bytes) {
            Ok(pdu) => prop_assert_eq!(pdu.emit(data_len(&bytes)), normalized(&bytes)),
            Err(BadPdu::Opcode(it)) => prop_assert!(it == opcode && (opcode >= 0x20 || !known)),
            Err(error) => prop_assert!(matches!(opcode, 2 | 3), "{} of {}", error, opcode),
        }
        match TargetPdu::parse(&bytes) {
            Ok(pdu) => prop_assert_eq!(pdu.emit(data_len(&bytes)), normalized(&bytes)),
            Err(BadPdu::Opcode(it)) => prop_assert!(it == opcode && (opcode < 0x20 || !known)),
            Err(error) => prop_assert!(matches!(opcode, 0x21 | 0x23 | 0x25), "{} of {}", error, opcode),
        }
    }

    /// RFC 7143 §11.1: every part is a multiple of 4 long; §11.2.3: no data, no data digest.
    #[test]
    fn layouts_have_the_lengths_of_their_parts(
        mut bytes: [u8; HEADER_LEN], short in option::of(0..9_u8), header: bool, data: bool,
    ) {
        if let Some(short) = short {
            bytes[5..8].copy_from_slice(&[0, 0, short]);
        }
        let layout = PduLayout::of(&bytes, Digests { header, data });
        let len = data_len(&bytes) as usize;
        prop_assert_eq!((layout.additional, layout.data), (4 * usize::from(bytes[4]), len));
        prop_assert_eq!(layout.header_len(), 48 + layout.additional + if header { 4 } else { 0 });
        prop_assert!(layout.header_len() <= PduLayout::MAX_HEADER_LEN);
        prop_assert!(padding(len) < 4 && (len + padding(len)).is_multiple_of(4));
        prop_assert_eq!(layout.trailer_len(), padding(len) + if data && len > 0 { 4 } else { 0 });
        prop_assert_eq!(layout.len(), layout.header_len() + len + layout.trailer_len());
        prop_assert!(layout.len().is_multiple_of(4) && !layout.is_empty());
    }
}
