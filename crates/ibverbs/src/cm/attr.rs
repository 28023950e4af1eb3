//! What a queue pair is told of its peer: for programs that connect their own, and for those that ask afterwards.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::id::Id;
use super::state::State;
use crate::abi::*;
use crate::errno::{Errno, minus_one};
use crate::object::{find, put};
use ironwarp_engine::gid::{Gid, GidTable};
use ironwarp_wire::private::Aside;
use std::ffi::c_int;

/// How long an acknowledgement may take if the program did not say, as the verbs count it: about two seconds.
const ACK_TIMEOUT: u8 = 19;
/// How often the verbs try again at most; on receives that are not posted, this means for ever.
const RETRIES: u8 = 7;
/// How long a peer whose receive is not posted is asked to wait, as the verbs count it: the longest, as Linux has it.
const RNR_TIMER: u8 = 0;

/// The way to the peer.
pub(super) fn address_handle(state: &State) -> Result<ibv_ah_attr, Errno> {
    let (local, remote) = (state.local.ok_or(Errno::INVALID)?, state.remote.ok_or(Errno::INVALID)?);
    let own = GidTable::of_process().find(Gid::from(local.ip()))?;
    // An address such as 127.0.0.2 is in no table, but leads to the same host as one that is.
    let index = own.map_or(0, |own| own.index);
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = ibv_gid { raw: Gid::from(remote.ip()).to_bytes() };
    attr.grh.sgid_index = u8::try_from(index).map_err(|_| Errno::INVALID)?;
    attr.grh.hop_limit = 64;
    attr.grh.traffic_class = state.options.traffic_class;
    attr.is_global = 1;
    attr.port_num = 1;
    Ok(attr)
}

impl Id {
    /// Keeps what the connection is like with the queue pair, for a program that asks it.
    pub(super) fn note_connection(&self, header: &Aside) {
        let Ok(Some(qp)) = self.qp() else { return };
        let state = self.shared().lock();
        let address = address_handle(&state);
        let (depths, timeout) = (state.depths, state.options.ack_timeout.unwrap_or(ACK_TIMEOUT));
        let peer = state.peer.map_or(0, |peer| peer.qpn);
        drop(state);
        qp.note(|attr| {
            attr.port_num = 1;
            attr.path_mtu = IBV_MTU_4096;
            attr.dest_qp_num = peer;
            attr.max_rd_atomic = depths.initiator;
            attr.max_dest_rd_atomic = depths.responder;
            attr.timeout = timeout;
            attr.retry_cnt = header.retry_count;
            attr.rnr_retry = header.rnr_retry_count;
            attr.min_rnr_timer = RNR_TIMER;
            attr.qp_access_flags = access();
            if let Ok(address) = address {
                attr.ah_attr = address;
            }
        });
    }
}

fn access() -> u32 {
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
}

/// What a step to `attr.qp_state` takes, and which attributes these are.
fn init(id: &Id, attr: &mut ibv_qp_attr) -> Result<u32, Errno> {
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
                attr.qp_access_flags = access();
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        IBV_QPS_RTR if id.is_datagram() => {}
        IBV_QPS_RTR => {
            attr.ah_attr = address_handle(&state)?;
            attr.path_mtu = IBV_MTU_4096;
            attr.dest_qp_num = state.peer.map_or(0, |peer| peer.qpn);
            attr.rq_psn = 0;
            attr.max_dest_rd_atomic = state.depths.responder;
            attr.min_rnr_timer = RNR_TIMER;
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
            attr.retry_cnt = RETRIES;
            // Whatever the peer's program said: TCP lets a message wait, and nothing is sent again.
            attr.rnr_retry = RETRIES;
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
    // SAFETY: NULL or the caller's.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return minus_one!(Err(Errno::null("attr"))) };
    minus_one!(find::<Id>(id).and_then(|id| {
        let found = init(&id, attr)?;
        // SAFETY: NULL or the caller's.
        unsafe { put(mask, found.cast_signed()) };
        Ok(())
    }))
}
