//! `ibv_modify_qp`: sets attributes of a queue pair and changes its state.
#![expect(unsafe_code, reason = "unions of C")]

use super::required::check_transition;
use super::{Kind, Qp};
use crate::abi::*;
use crate::check;
use crate::objects::gids::{gid_index_of_lid, gid_of_lid};
use crate::objects::mr::remote_rights;
use crate::support::errno::Errno;
use crate::support::persona::is_iwarp;
use crate::support::report::Hex;
use ironwarp_engine::gid::{Gid, GidTable};
use ironwarp_engine::{BringUpOptions, Local, Peer, Remote};
use ironwarp_rnic::qp::{Retries, State};
use std::ffi::c_int;

impl Qp {
    /// Sets the attributes that `mask` names, and changes the state if `mask` has `IBV_QP_STATE`.
    pub(crate) fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), Errno> {
        if mask.cast_unsigned() & IBV_QP_MAX_QP_RD_ATOMIC != 0
            && let Some(checker) = check::active()
        {
            checker.setting_reads(attr.max_rd_atomic.into());
        }
        let mask = mask.cast_unsigned();
        if mask & IBV_QP_PORT != 0 {
            self.context().port(attr.port_num)?;
        }
        if mask & IBV_QP_PKEY_INDEX != 0 && attr.pkey_index != 0 {
            return Err(Errno::INVALID.because("pkey_index must be 0"));
        }
        // The device does not announce IBV_DEVICE_AUTO_PATH_MIG.
        if mask & IBV_QP_ALT_PATH != 0
            || mask & IBV_QP_PATH_MIG_STATE != 0 && attr.path_mig_state != IBV_MIG_MIGRATED
        {
            return Err(Errno::UNSUPPORTED.because("alternative paths are not supported"));
        }
        let from = self.refresh_state();
        if mask & IBV_QP_CUR_STATE != 0 && attr.cur_qp_state != from {
            return Err(Errno::INVALID
                .because(format_args!("cur_qp_state is {}, but the state is {from}", attr.cur_qp_state)));
        }
        let to = if mask & IBV_QP_STATE != 0 { attr.qp_state } else { from };
        // Linux does not apply the table to iWARP adapters. There a new queue pair is idle, and reports INIT.
        if !is_iwarp()
            && let Some(why) = check_transition(self.init().qp_type, from, to, mask)
        {
            return Err(Errno::INVALID.because(format_args!("queue pair {}: {why}", Hex(self.number()))));
        }
        self.store_attributes(attr, mask);
        if mask & IBV_QP_STATE != 0 {
            self.change_state(attr, mask)?;
        }
        if mask & IBV_QP_ACCESS_FLAGS != 0
            && let Some(pair) = self.stream()
        {
            pair.qp().set_rights(remote_rights(attr.qp_access_flags));
        }
        if mask & (IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER) != 0 {
            self.set_retries();
        }
        if mask & IBV_QP_QKEY != 0
            && let Kind::Datagram(pair) = self.kind()
        {
            pair.qp().set_qkey(attr.qkey);
        }
        self.refresh_state();
        Ok(())
    }

    /// Changes the state to `attr.qp_state`. The transition to RTR starts to connect a connected queue pair.
    fn change_state(&self, attr: &ibv_qp_attr, mask: u32) -> Result<(), Errno> {
        let to = match attr.qp_state {
            IBV_QPS_RESET => State::Reset,
            IBV_QPS_INIT => State::Init,
            IBV_QPS_RTR => State::ReadyToReceive,
            IBV_QPS_RTS => State::ReadyToSend,
            IBV_QPS_SQD => State::Drained,
            IBV_QPS_SQE => State::SendError,
            IBV_QPS_ERR => State::Error,
            _ => return Err(Errno::INVALID.because(format_args!("unknown qp_state {}", attr.qp_state))),
        };
        match self.kind() {
            Kind::Datagram(pair) => pair.qp().modify(to)?,
            Kind::Stream(pair) if to == State::ReadyToReceive => {
                if mask & IBV_QP_AV == 0 || mask & IBV_QP_DEST_QPN == 0 {
                    return Err(Errno::INVALID
                        .because("the transition to RTR requires IBV_QP_AV and IBV_QP_DEST_QPN"));
                }
                // Before connecting, because the RNR timer is sent to the peer when the connection is established.
                self.set_retries();
                let port = self.attr().port_num.max(1); // 0 if an iWARP queue pair has none
                let table = self.context().port(port)?.gids();
                let remote = remote_qp(table, attr)?;
                let options = bring_up_options(port, table, attr, mask)?;
                self.context().engine().bring_up(pair, remote, &options).map_err(|error| {
                    let (own, peer) = (Hex(self.number()), Peer::Qp(remote));
                    let why = format!("failed to connect queue pair {own} to {peer}: {error}");
                    Errno::from(error).because(why)
                })?;
            }
            Kind::Stream(pair) => {
                if mask & IBV_QP_SQ_PSN != 0 {
                    pair.set_send_psn(attr.sq_psn);
                }
                // INIT to INIT and RTS to RTS only change attributes.
                if to != pair.qp().state() || !matches!(to, State::Init | State::ReadyToSend) {
                    pair.modify(to)?;
                }
            }
        }
        // A reset queue pair has no attributes.
        if to == State::Reset {
            *self.attr() = ibv_qp_attr::zeroed();
        }
        if let Some(checker) = check::active() {
            checker.pair_moved(self.context().adapter_key(), self.number(), to);
        }
        Ok(())
    }

    /// Copies the attributes that `mask` names to `self.attr`, for queries and later transitions.
    fn store_attributes(&self, from: &ibv_qp_attr, mask: u32) {
        let mut to = self.attr();
        let to = &mut *to;
        macro_rules! keep {
            ($($bit:ident: $($field:ident),*;)*) => {
                $(if mask & $bit != 0 { $(to.$field = from.$field;)* })*
            };
        }
        keep! {
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_QKEY: qkey;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_SQ_PSN: sq_psn;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_PATH_MIG_STATE: path_mig_state;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_RATE_LIMIT: rate_limit;
        }
    }

    /// Passes the stored timeouts and retry counts to the adapter.
    fn set_retries(&self) {
        let Some(pair) = self.stream() else { return };
        let attr = self.attr();
        let retries = Retries::default()
            .rnr_retry(attr.rnr_retry)
            .rnr_timer(attr.min_rnr_timer)
            .retry_count(attr.retry_cnt)
            .timeout(attr.timeout);
        drop(attr);
        pair.set_retries(retries);
    }
}

/// Converts the attributes of the connection at a port, which has this GID table, for the adapter: all except the
/// address of the peer.
fn bring_up_options(
    port: u8,
    table: GidTable,
    attr: &ibv_qp_attr,
    mask: u32,
) -> Result<BringUpOptions, Errno> {
    let index = match attr.ah_attr.is_global {
        0 => gid_index_of_lid(table)?,
        _ => usize::from(attr.ah_attr.grh.sgid_index),
    };
    // At least one: a peer may request an acknowledgement by a Read, even from a queue pair that serves no others.
    let ird = u16::from(attr.max_dest_rd_atomic).max(1);
    // IBV_MTU_256 is 1, IBV_MTU_4096 is 5, and each value doubles the MTU.
    let mtu = (IBV_MTU_256..=IBV_MTU_4096).contains(&attr.path_mtu).then(|| 128 << attr.path_mtu);
    // PSNs have 24 bits.
    let receive_psn = (mask & IBV_QP_RQ_PSN != 0).then_some(attr.rq_psn & 0xff_ffff);
    let local = Local::Index { port, index };
    let traffic_class = if attr.ah_attr.is_global == 0 { 0 } else { attr.ah_attr.grh.traffic_class };
    Ok(BringUpOptions { local, ird: Some(ird), ord: None, path_mtu: mtu, receive_psn, traffic_class })
}

/// Returns the peer that the attributes of a transition to RTR name: by queue pair number, and by GID or,
/// without a GRH, by LID.
fn remote_qp(table: GidTable, attr: &ibv_qp_attr) -> Result<Remote, Errno> {
    let gid = match attr.ah_attr.is_global {
        0 => gid_of_lid(table, attr.ah_attr.dlid)?,
        // SAFETY: `ibv_gid` is a union of sixteen bytes and two integers, so all its bytes are initialised.
        _ => Gid::from_bytes(unsafe { attr.ah_attr.grh.dgid.raw }),
    };
    Ok(Remote { gid, qpn: attr.dest_qp_num })
}
