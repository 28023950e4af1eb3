//! The attributes that connect a queue pair to its peer. `rdma_init_qp_attr` returns them to programs that connect
//! a queue pair of their own. They are also recorded in the queue pair of an id, for `ibv_query_qp`.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use crate::abi::*;
use crate::support::errno::{Errno, minus_one};
use crate::support::object::{find, put};
use ironwarp_wire::private::CmHeader;
use std::ffi::c_int;

/// Default acknowledgement timeout, in the encoding of verbs: about two seconds.
const ACK_TIMEOUT: u8 = 19;
/// Maximum retry count of verbs. As an RNR retry count, it means forever.
const MAX_RETRIES: u8 = 7;
/// The longest RNR timer, 655 ms, in the encoding of verbs. Linux sets the same.
const MAX_RNR_TIMER: u8 = 0;
/// Access flags of a connected queue pair.
const ACCESS: u32 =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

impl Id {
    /// Records the attributes of the connection in the queue pair of the id, for queries. Does nothing if the id
    /// has no queue pair.
    pub(super) fn record_connection(&self, header: &CmHeader) {
        let Ok(Some(qp)) = self.qp() else { return };
        let state = self.shared().lock();
        let address = state.address_handle();
        let (depths, timeout) = (state.depths, state.options.ack_timeout.unwrap_or(ACK_TIMEOUT));
        let peer = state.peer.map_or(0, |peer| peer.qpn);
        drop(state);
        qp.update_attr(|attr| {
            attr.port_num = 1;
            attr.path_mtu = IBV_MTU_4096;
            attr.dest_qp_num = peer;
            attr.max_rd_atomic = depths.initiator;
            attr.max_dest_rd_atomic = depths.responder;
            attr.timeout = timeout;
            attr.retry_cnt = header.retry_count;
            attr.rnr_retry = header.rnr_retry_count;
            attr.min_rnr_timer = MAX_RNR_TIMER;
            attr.qp_access_flags = ACCESS;
            if let Ok(address) = address {
                attr.ah_attr = address;
            }
        });
    }
}

/// Sets the attributes for the transition to `attr.qp_state`, and returns the mask that names them
/// (`ibv_qp_attr_mask`).
fn set_attributes(id: &Id, attr: &mut ibv_qp_attr) -> Result<u32, Errno> {
    let state = id.shared().lock();
    let mut mask = IBV_QP_STATE;
    match attr.qp_state {
        IBV_QPS_INIT => {
            attr.pkey_index = 0;
            attr.port_num = 1;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if id.is_datagram() {
                attr.qkey = RDMA_UDP_QKEY;
                mask |= IBV_QP_QKEY;
            } else {
                attr.qp_access_flags = ACCESS;
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        IBV_QPS_RTR if id.is_datagram() => {}
        IBV_QPS_RTR => {
            attr.ah_attr = state.address_handle()?;
            attr.path_mtu = IBV_MTU_4096;
            attr.dest_qp_num = state.peer.map_or(0, |peer| peer.qpn);
            attr.rq_psn = 0;
            attr.max_dest_rd_atomic = state.depths.responder;
            attr.min_rnr_timer = MAX_RNR_TIMER;
            mask |= IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER;
        }
        IBV_QPS_RTS if id.is_datagram() => {
            attr.sq_psn = 0;
            mask |= IBV_QP_SQ_PSN;
        }
        IBV_QPS_RTS => {
            attr.sq_psn = 0;
            attr.timeout = state.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
            attr.retry_cnt = MAX_RETRIES;
            // Independent of the RNR retry count of the peer: messages wait for a receive, and are not sent again.
            attr.rnr_retry = MAX_RETRIES;
            attr.max_rd_atomic = state.depths.initiator;
            mask |= IBV_QP_SQ_PSN
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        _ => return Err(Errno::INVALID),
    }
    Ok(mask)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: NULL, or valid by the caller's contract.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return minus_one!(Err(Errno::null("attr"))) };
    minus_one!(find::<Id>(id).and_then(|id| {
        let set = set_attributes(&id, attr)?;
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(mask, set.cast_signed()) };
        Ok(())
    }))
}
