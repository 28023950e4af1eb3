//! Names of enumeration values, and conversion of link rates. Users and scripts read these names, so the names are
//! exactly those of the real libraries.
#![expect(unsafe_code, reason = "exports symbols")]

use crate::abi::*;
use std::ffi::{CStr, c_char, c_int};

/// Names of completion statuses, indexed by `ibv_wc_status`.
const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Names of opcodes, indexed by `ibv_wr_opcode`, in which two values are unused.
const OPCODES: [Option<&CStr>; 16] = [
    Some(c"rdma-write"),
    Some(c"rdma-write-with-imm"),
    Some(c"send"),
    Some(c"send-with-imm"),
    Some(c"rdma-read"),
    Some(c"atomic-cmp-and-swp"),
    Some(c"atomic-fetch-and-add"),
    Some(c"local-inv"),
    Some(c"bind-mw"),
    Some(c"send-with-inv"),
    Some(c"tso"),
    Some(c"driver1"),
    None,
    None,
    Some(c"flush"),
    Some(c"atomic-write"),
];

/// Names of asynchronous events, indexed by `ibv_event_type`.
const EVENTS: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

/// Names of port states, indexed by `ibv_port_state`.
const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// Names of node types, indexed by `ibv_node_type`, which has no value 0.
const NODE_TYPES: [&CStr; 8] = [
    UNKNOWN,
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// Names of connection manager events, indexed by `rdma_cm_event_type`. Events with higher values have no name in
/// librdmacm either.
const CM_EVENTS: [&CStr; 18] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
];

const UNKNOWN: &CStr = c"unknown";
const UNKNOWN_CM_EVENT: &CStr = c"UNKNOWN EVENT";

/// The link rates: the constant, the rate in Mbit/s, and the multiple of 2.5 Gbit/s that `ibv_rate_to_mult` defines
/// for it, if any.
const RATES: [(ibv_rate, c_int, Option<c_int>); 23] = [
    (IBV_RATE_2_5_GBPS, 2_500, Some(1)),
    (IBV_RATE_5_GBPS, 5_000, Some(2)),
    (IBV_RATE_10_GBPS, 10_000, Some(4)),
    (IBV_RATE_20_GBPS, 20_000, Some(8)),
    (IBV_RATE_30_GBPS, 30_000, Some(12)),
    (IBV_RATE_40_GBPS, 40_000, Some(16)),
    (IBV_RATE_60_GBPS, 60_000, Some(24)),
    (IBV_RATE_80_GBPS, 80_000, Some(32)),
    (IBV_RATE_120_GBPS, 120_000, Some(48)),
    (IBV_RATE_14_GBPS, 14_062, None),
    (IBV_RATE_56_GBPS, 56_250, None),
    (IBV_RATE_112_GBPS, 112_500, None),
    (IBV_RATE_168_GBPS, 168_750, None),
    (IBV_RATE_25_GBPS, 25_781, None),
    (IBV_RATE_100_GBPS, 103_125, None),
    (IBV_RATE_200_GBPS, 206_250, None),
    (IBV_RATE_300_GBPS, 309_375, None),
    (IBV_RATE_28_GBPS, 28_125, Some(11)),
    (IBV_RATE_50_GBPS, 53_125, Some(20)),
    (IBV_RATE_400_GBPS, 425_000, Some(160)),
    (IBV_RATE_600_GBPS, 637_500, Some(240)),
    (IBV_RATE_800_GBPS, 850_000, Some(320)),
    (IBV_RATE_1200_GBPS, 1_275_000, Some(480)),
];

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    name(&STATUSES, status, UNKNOWN)
}

/// Returns the name of an opcode. The real function, which exists since rdma-core 56, returns NULL for unknown values.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    let name = usize::try_from(opcode).ok().and_then(|opcode| OPCODES.get(opcode).copied());
    name.flatten().unwrap_or(UNKNOWN).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    name(&EVENTS, event, UNKNOWN)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    name(&PORT_STATES, port_state, UNKNOWN)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    name(&NODE_TYPES, node_type.cast_unsigned(), UNKNOWN)
}

#[unsafe(no_mangle)]
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    name(&CM_EVENTS, event, UNKNOWN_CM_EVENT)
}

/// Returns a rate as a multiple of 2.5 Gbit/s, or -1 if the rate has none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).and_then(|(.., multiple)| *multiple).unwrap_or(-1)
}

/// Returns the rate for a multiple of 2.5 Gbit/s, or `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|(.., multiple)| *multiple == Some(mult)).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

/// Returns a rate in Mbit/s, or -1 if the rate is unknown.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(_, mbps, _)| *mbps)
}

/// Returns the rate for a number of Mbit/s, or `IBV_RATE_MAX` if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|(_, value, _)| *value == mbps).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

/// Returns the name of a value, or `unknown` if the value is out of range.
fn name(names: &[&'static CStr], value: u32, unknown: &'static CStr) -> *const c_char {
    usize::try_from(value).ok().and_then(|value| names.get(value)).unwrap_or(&unknown).as_ptr()
}
