//! Converts completions of the adapter to `ibv_wc`.

use crate::abi::*;
use crate::support::report;
use ironwarp_rnic::queue::{Completion, Opcode, Status};

/// Converts a completion.
pub(crate) fn to_c(completion: &Completion) -> ibv_wc {
    let (imm_data, flags) = match (completion.immediate, completion.invalidated) {
        (Some(immediate), _) => (immediate.to_be(), IBV_WC_WITH_IMM),
        (None, Some(tag)) => (tag.0, IBV_WC_WITH_INV),
        (None, None) => (0, 0),
    };
    let (src_qp, sl, grh) =
        completion.sender.map_or((0, 0, 0), |sender| (sender.qp, sender.service_level, IBV_WC_GRH));
    ibv_wc {
        wr_id: completion.wr_id,
        status: status(completion.status),
        opcode: opcode(completion.opcode),
        vendor_err: report::vendor_err(completion),
        byte_len: completion.byte_len,
        imm_data,
        qp_num: completion.qp,
        src_qp,
        wc_flags: flags | grh,
        pkey_index: 0,
        slid: 0,
        sl,
        dlid_path_bits: 0,
    }
}

/// Converts an opcode to C.
pub(crate) fn opcode(opcode: Opcode) -> ibv_wc_opcode {
    match opcode {
        Opcode::Write => IBV_WC_RDMA_WRITE,
        Opcode::Read => IBV_WC_RDMA_READ,
        Opcode::CompareSwap => IBV_WC_COMP_SWAP,
        Opcode::FetchAdd => IBV_WC_FETCH_ADD,
        Opcode::Bind => IBV_WC_BIND_MW,
        Opcode::Invalidate => IBV_WC_LOCAL_INV,
        Opcode::Receive => IBV_WC_RECV,
        Opcode::ReceiveWrite => IBV_WC_RECV_RDMA_WITH_IMM,
        _ => IBV_WC_SEND,
    }
}

/// Converts a status to C.
pub(crate) fn status(status: Status) -> ibv_wc_status {
    match status {
        Status::Success => IBV_WC_SUCCESS,
        Status::LocalLength => IBV_WC_LOC_LEN_ERR,
        Status::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Status::Flushed => IBV_WC_WR_FLUSH_ERR,
        Status::WindowBind => IBV_WC_MW_BIND_ERR,
        Status::BadResponse => IBV_WC_BAD_RESP_ERR,
        Status::LocalAccess => IBV_WC_LOC_ACCESS_ERR,
        Status::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        Status::Fatal => IBV_WC_FATAL_ERR,
        _ => IBV_WC_GENERAL_ERR,
    }
}
