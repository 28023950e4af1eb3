//! Limits of the adapters that the Linux drivers mlx5, irdma and efa support.
//!
//! `ironwarp run --check=mlx5|irdma|efa` reports requests of a program that Ironwarp accepts but one of
//! these drivers rejects. Only limits that the driver itself fixes are listed: a constant, the layout of a
//! descriptor, a missing operation or an explicit check. Limits that the firmware reports, such as the depth
//! of the queues of mlx5 and efa, differ between adapters and are not checked.
//!
//! irdma supports three generations of adapters. The limits are those of generation 2 (Intel E800 series).
//! Generation 1 (X722) allows less; generation 3 (IPU) allows more and has shared receive queues, memory
//! windows and, if its firmware does, atomics.
//!
//! | source | version |
//! |---|---|
//! | Linux: `drivers/infiniband/hw/{mlx5,irdma,efa}`, `include/linux/mlx5`, `include/rdma` | 6.12 (*) |
//! | Linux: `irdma_dev_ops` and `irdma_gen3_dev_ops` in `drivers/infiniband/hw/irdma/verbs.c` | 7.0 (**) |
//! | rdma-core: `providers/{mlx5,irdma,efa}` | 64.0 (commit f272237493ef) |
//!
//! (*) As packaged in kernel 6.12.0-124.28.1.el10_1.
//!
//! (**) Read in a merge of 7.0.9 and 7.1-rc4, where the two agree.

use crate::abi::ibv_qp_cap;
use ironwarp_engine::config::Check;

/// `IBV_QPT_RC`: reliable connection.
const RC: u32 = 2;
/// `IBV_QPT_UC`: unreliable connection.
const UC: u32 = 3;
/// `IBV_QPT_UD`: unreliable datagram.
const UD: u32 = 4;
/// `IBV_QPT_RAW_PACKET`: Ethernet frames.
const RAW_PACKET: u32 = 8;
/// `IBV_QPT_XRC_SEND`: the initiator of an extended reliable connection.
const XRC_SEND: u32 = 9;
/// `IBV_QPT_XRC_RECV`: the target of an extended reliable connection.
const XRC_RECV: u32 = 10;
/// `IBV_QPT_DRIVER`: a type of the driver, such as SRD of efa.
const DRIVER: u32 = 0xff;

/// The access flags of libibverbs that some driver rejects, with their names.
const ACCESS_FLAGS: [(u32, &str); 7] = [
    (1 << 3, "IBV_ACCESS_REMOTE_ATOMIC"),
    (1 << 4, "IBV_ACCESS_MW_BIND"),
    (1 << 5, "IBV_ACCESS_ZERO_BASED"),
    (1 << 6, "IBV_ACCESS_ON_DEMAND"),
    (1 << 7, "IBV_ACCESS_HUGETLB"),
    (1 << 8, "IBV_ACCESS_FLUSH_GLOBAL"),
    (1 << 9, "IBV_ACCESS_FLUSH_PERSISTENT"),
];

/// A request of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A send, with or without immediate data.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Write with immediate data.
    WriteImmediate,
    /// An RDMA Read.
    Read,
    /// A compare-and-swap or fetch-and-add.
    Atomic,
    /// The binding of a memory window.
    BindWindow,
    /// The invalidation of a local memory region or window.
    LocalInvalidate,
    /// A send that invalidates a key of the peer.
    SendInvalidate,
}

impl Operation {
    /// Returns the name in a report.
    fn name(self) -> &'static str {
        match self {
            Self::Send => "Sends",
            Self::Write => "RDMA Writes",
            Self::WriteImmediate => "RDMA Writes with immediate data",
            Self::Read => "RDMA Reads",
            Self::Atomic => "atomic operations",
            Self::BindWindow => "binding memory windows",
            Self::LocalInvalidate => "local invalidation",
            Self::SendInvalidate => "Sends that invalidate",
        }
    }
}

/// An upper bound.
#[derive(Debug)]
struct Bound {
    /// The largest value that the driver supports.
    max: u64,
    /// Where the driver says so.
    source: &'static str,
}

/// Something that the driver does not support.
#[derive(Debug)]
struct Missing<T: 'static> {
    /// What is not supported.
    what: T,
    /// Where the driver says so.
    source: &'static str,
}

/// How the size of a work queue follows from the requested depth.
#[derive(Debug)]
struct Quanta {
    /// The units of 32 bytes that a queue has at most.
    max: u64,
    /// The units of a send queue that the driver reserves.
    send_reserved: u64,
    /// The units of a receive queue that the driver reserves.
    receive_reserved: u64,
    /// Where the driver says so.
    source: &'static str,
}

/// The limits of one driver. `None` means that the firmware decides, or that there is no limit.
#[derive(Debug)]
pub(super) struct Limits {
    /// The name of the driver, and the adapters the limits are those of.
    driver: &'static str,
    /// The types of queue pairs that can be created.
    ///
    /// mlx5: `check_qp_type` in `qp.c`; irdma: `irdma_validate_qp_attrs` in `verbs.c`, `irdma_ucreate_qp` in
    /// rdma-core; efa: `efa_qp_validate_attr` in `efa_verbs.c`.
    types: Missing<&'static [u32]>,
    /// `max_send_sge` of a queue pair.
    ///
    /// mlx5: `mlx5_ib_query_device` in `main.c` reports (512 - 16 - 16) / 16 or less; irdma:
    /// `IRDMA_MAX_WQ_FRAGMENT_COUNT` in `user.h`; efa: `EFA_IO_TX_DESC_NUM_BUFS` in `efa_io_defs.h`.
    send_sges: Option<Bound>,
    /// `max_recv_sge` of a queue pair.
    ///
    /// irdma: `IRDMA_MAX_WQ_FRAGMENT_COUNT` in `user.h`. mlx5 and efa: firmware.
    receive_sges: Option<Bound>,
    /// `max_inline_data` of a queue pair, and the inline data of one request.
    ///
    /// irdma: `IRDMA_MAX_INLINE_DATA_SIZE` in `user.h`; efa: `EFA_IO_TX_DESC_INLINE_MAX_SIZE_128` in
    /// `efa_io_defs.h`, 32 on adapters without requests of 128 bytes. mlx5: firmware.
    inline: Option<Bound>,
    /// The depth of work queues.
    ///
    /// irdma: `irdma_get_wqe_shift`, `irdma_get_sqdepth` and `irdma_get_rqdepth` in `uk.c` of rdma-core, with
    /// `IRDMA_QP_SW_MAX_WQ_QUANTA`, `IRDMA_QP_SW_MAX_RQ_QUANTA`, `IRDMA_SQ_RSVD` and `IRDMA_RQ_RSVD` in
    /// `type.h` of Linux. mlx5 and efa: firmware.
    depth: Option<Quanta>,
    /// The local buffers of an RDMA Read (`max_sge_rd`).
    ///
    /// mlx5: `MLX5_MAX_SGE_RD` in `include/linux/mlx5/device.h`; irdma: `IRDMA_MAX_SGE_RD` in `user.h`; efa:
    /// `EFA_IO_TX_DESC_NUM_RDMA_BUFS` in `efa_io_defs.h`.
    read_sges: Option<Bound>,
    /// The local buffers of an RDMA Write that is not inline, if fewer than those of a Send.
    ///
    /// efa: `EFA_IO_TX_DESC_NUM_RDMA_BUFS` in `efa_io_defs.h`.
    write_sges: Option<Bound>,
    /// The entries of a completion queue.
    ///
    /// mlx5: `create_cq` in `verbs.c` of rdma-core rounds one more up to a power of two, at most 2^24; irdma:
    /// `IRDMA_MAX_CQ_SIZE` in `user.h`, less one. efa: firmware.
    completions: Option<Bound>,
    /// Shared receive queues, if there are none.
    ///
    /// irdma: `irdma_dev_ops` has no `create_srq`; efa: `efa_qp_validate_attr` in `efa_verbs.c`.
    no_shared_queue: Option<&'static str>,
    /// Memory windows, if there are none.
    ///
    /// irdma: `irdma_dev_ops` of Linux 7.0 has no `alloc_mw`, `irdma_gen3_dev_ops` has. Linux 6.12 still
    /// offers them for all generations. efa: `efa_dev_ops` in `efa_main.c`.
    no_window: Option<&'static str>,
    /// The length of a memory region.
    ///
    /// irdma: `IRDMA_MAX_MR_SIZE` in `user.h`, checked by `irdma_reg_user_mr`. efa: firmware. mlx5: none.
    region_len: Option<Bound>,
    /// The access flags that make the registration of a memory region fail.
    ///
    /// irdma: `ib_check_mr_access` in `include/rdma/ib_verbs.h`, with the capabilities that
    /// `irdma_query_device` reports; efa: `efa_alloc_mr` in `efa_verbs.c`. mlx5: firmware.
    access: Option<Missing<u32>>,
    /// The requests that cannot be posted.
    ///
    /// irdma: `irdma_upost_send` in `uverbs.c` of rdma-core needs `IRDMA_FEATURE_ATOMIC_OPS` for atomics,
    /// which Linux 6.12 does not have; windows to bind cannot be allocated;
    /// efa: `efa_check_qp_attr` and `efa_post_send_validate_wr` in `verbs.c` of rdma-core.
    operations: &'static [Missing<Operation>],
    /// Outstanding Reads and atomics of a queue pair, as requester (`max_rd_atomic`).
    ///
    /// mlx5: `log_sra_max` of `mlx5_ifc_qpc_bits` has 3 bits; irdma: `ICRDMA_MAX_ORD_SIZE` in `icrdma_hw.h`,
    /// checked by `irdma_modify_qp_roce`, which is the maximum of the attribute anyway.
    reads: Option<Bound>,
    /// Why `max_rd_atomic` cannot be set at all.
    ///
    /// efa: `EFA_MODIFY_QP_SUPP_MASK` in `efa_verbs.c` does not contain `IB_QP_MAX_QP_RD_ATOMIC`.
    no_reads_attribute: Option<&'static str>,
}

/// The limits of mlx5.
const MLX5: Limits = Limits {
    driver: "mlx5",
    types: Missing {
        what: &[RC, UC, UD, RAW_PACKET, XRC_SEND, XRC_RECV, DRIVER],
        source: "check_qp_type, drivers/infiniband/hw/mlx5/qp.c, Linux 6.12",
    },
    send_sges: Some(Bound {
        max: 30,
        source: "mlx5_ib_query_device, drivers/infiniband/hw/mlx5/main.c, Linux 6.12",
    }),
    receive_sges: None,
    inline: None,
    depth: None,
    read_sges: Some(Bound { max: 30, source: "MLX5_MAX_SGE_RD, include/linux/mlx5/device.h, Linux 6.12" }),
    write_sges: None,
    completions: Some(Bound {
        max: (1 << 24) - 1,
        source: "create_cq, providers/mlx5/verbs.c, rdma-core 64.0",
    }),
    no_shared_queue: None,
    no_window: None,
    region_len: None,
    access: None,
    operations: &[],
    reads: Some(Bound {
        max: 128,
        source: "log_sra_max of mlx5_ifc_qpc_bits, include/linux/mlx5/mlx5_ifc.h, Linux 6.12",
    }),
    no_reads_attribute: None,
};

/// Where irdma has its table of operations, without those of generation 3.
const IRDMA_OPS: &str = "irdma_dev_ops, drivers/infiniband/hw/irdma/verbs.c, Linux 7.0";

/// The limits of irdma, generation 2.
const IRDMA: Limits = Limits {
    driver: "irdma (E800 series)",
    types: Missing {
        what: &[RC, UD],
        source: "irdma_validate_qp_attrs, drivers/infiniband/hw/irdma/verbs.c, Linux 6.12",
    },
    send_sges: Some(Bound {
        max: 13,
        source: "IRDMA_MAX_WQ_FRAGMENT_COUNT, drivers/infiniband/hw/irdma/user.h, Linux 6.12",
    }),
    receive_sges: Some(Bound {
        max: 13,
        source: "IRDMA_MAX_WQ_FRAGMENT_COUNT, drivers/infiniband/hw/irdma/user.h, Linux 6.12",
    }),
    inline: Some(Bound {
        max: 101,
        source: "IRDMA_MAX_INLINE_DATA_SIZE, drivers/infiniband/hw/irdma/user.h, Linux 6.12",
    }),
    depth: Some(Quanta {
        max: 32768,
        send_reserved: 258,
        receive_reserved: 1,
        source: "irdma_get_sqdepth and irdma_get_rqdepth, providers/irdma/uk.c, rdma-core 64.0",
    }),
    read_sges: Some(Bound {
        max: 13,
        source: "IRDMA_MAX_SGE_RD, drivers/infiniband/hw/irdma/user.h, Linux 6.12",
    }),
    write_sges: None,
    completions: Some(Bound {
        max: 1_048_574,
        source: "IRDMA_MAX_CQ_SIZE - 1, drivers/infiniband/hw/irdma/user.h, Linux 6.12",
    }),
    no_shared_queue: Some(IRDMA_OPS),
    no_window: Some(IRDMA_OPS),
    region_len: Some(Bound {
        max: 0x2000_0000_0000,
        source: "IRDMA_MAX_MR_SIZE, drivers/infiniband/hw/irdma/user.h, Linux 6.12",
    }),
    access: Some(Missing {
        what: (1 << 6) | (1 << 8) | (1 << 9),
        source: "irdma_query_device, drivers/infiniband/hw/irdma/verbs.c, Linux 6.12",
    }),
    operations: &[
        Missing {
            what: Operation::Atomic,
            source: "irdma_upost_send, providers/irdma/uverbs.c, rdma-core 64.0",
        },
        Missing { what: Operation::BindWindow, source: IRDMA_OPS },
    ],
    reads: Some(Bound {
        max: 255,
        source: "ICRDMA_MAX_ORD_SIZE, drivers/infiniband/hw/irdma/icrdma_hw.h, Linux 6.12",
    }),
    no_reads_attribute: None,
};

/// Where efa lists the requests that it supports.
const EFA_SENDS: &str = "efa_check_qp_attr, providers/efa/verbs.c, rdma-core 64.0";

/// The limits of efa.
const EFA: Limits = Limits {
    driver: "efa",
    types: Missing {
        what: &[UD, DRIVER],
        source: "efa_qp_validate_attr, drivers/infiniband/hw/efa/efa_verbs.c, Linux 6.12",
    },
    send_sges: Some(Bound {
        max: 2,
        source: "EFA_IO_TX_DESC_NUM_BUFS, providers/efa/efa_io_defs.h, rdma-core 64.0",
    }),
    receive_sges: None,
    inline: Some(Bound {
        max: 80,
        source: "EFA_IO_TX_DESC_INLINE_MAX_SIZE_128, providers/efa/efa_io_defs.h, rdma-core 64.0",
    }),
    depth: None,
    read_sges: Some(Bound {
        max: 1,
        source: "EFA_IO_TX_DESC_NUM_RDMA_BUFS, providers/efa/efa_io_defs.h, rdma-core 64.0",
    }),
    write_sges: Some(Bound {
        max: 1,
        source: "EFA_IO_TX_DESC_NUM_RDMA_BUFS, providers/efa/efa_io_defs.h, rdma-core 64.0",
    }),
    completions: None,
    no_shared_queue: Some("efa_qp_validate_attr, drivers/infiniband/hw/efa/efa_verbs.c, Linux 6.12"),
    no_window: Some("efa_dev_ops, drivers/infiniband/hw/efa/efa_main.c, Linux 6.12"),
    region_len: None,
    access: Some(Missing {
        what: 0x3f8,
        source: "efa_alloc_mr, drivers/infiniband/hw/efa/efa_verbs.c, Linux 6.12",
    }),
    operations: &[
        Missing { what: Operation::Atomic, source: EFA_SENDS },
        Missing { what: Operation::BindWindow, source: EFA_SENDS },
        Missing { what: Operation::LocalInvalidate, source: EFA_SENDS },
        Missing { what: Operation::SendInvalidate, source: EFA_SENDS },
    ],
    reads: None,
    no_reads_attribute: Some("EFA_MODIFY_QP_SUPP_MASK, drivers/infiniband/hw/efa/efa_verbs.c, Linux 6.12"),
};

/// Returns the limits to check, if the setting names a driver.
pub(super) fn of(check: Check) -> Option<&'static Limits> {
    match check {
        Check::Off | Check::On => None,
        Check::Mlx5 => Some(&MLX5),
        Check::Irdma => Some(&IRDMA),
        Check::Efa => Some(&EFA),
    }
}

impl Limits {
    /// Checks the attributes of a new queue pair. `kind` is its `qp_type`.
    pub(super) fn queue_pair(&self, kind: u32, cap: &ibv_qp_cap, has_srq: bool) -> Vec<String> {
        let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = *cap;
        let mut exceeded = Vec::new();
        if !self.types.what.contains(&kind) {
            exceeded.push(self.unsupported(&format!("qp_type {}", type_name(kind)), self.types.source));
        }
        exceeded.extend(self.above("max_send_sge", max_send_sge.into(), self.send_sges.as_ref()));
        exceeded.extend(self.above("max_inline_data", max_inline_data.into(), self.inline.as_ref()));
        exceeded.extend(self.send_depth(max_send_wr, max_send_sge, max_inline_data));
        if has_srq {
            exceeded.extend(self.no_shared_queue.map(|at| self.unsupported("a shared receive queue", at)));
        } else {
            exceeded.extend(self.above("max_recv_sge", max_recv_sge.into(), self.receive_sges.as_ref()));
            exceeded.extend(self.receive_depth(max_recv_wr, max_recv_sge));
        }
        exceeded
    }

    /// Checks the number of entries of a completion queue.
    pub(super) fn completion_queue(&self, entries: u32) -> Option<String> {
        self.above("cqe", entries.into(), self.completions.as_ref())
    }

    /// Checks the attributes of a shared receive queue. The limits on its depth and buffers are those of the
    /// firmware, if the adapter has such queues at all.
    pub(super) fn shared_receive_queue(&self) -> Option<String> {
        self.no_shared_queue.map(|source| self.unsupported("a shared receive queue", source))
    }

    /// Checks the allocation of a memory window.
    pub(super) fn memory_window(&self) -> Option<String> {
        self.no_window.map(|source| self.unsupported("a memory window", source))
    }

    /// Checks the registration of a memory region of `len` bytes with the flags `access`.
    pub(super) fn region(&self, len: u64, access: u32) -> Vec<String> {
        let mut exceeded: Vec<_> = self.above("length", len, self.region_len.as_ref()).into_iter().collect();
        if let Some(missing) = &self.access {
            let rejected = ACCESS_FLAGS.iter().filter(|(flag, _)| access & missing.what & flag != 0);
            exceeded.extend(rejected.map(|(_, name)| self.unsupported(name, missing.source)));
        }
        exceeded
    }

    /// Checks a request with `sges` elements in its list. `inline` is the length of its data if it is inline.
    pub(super) fn request(&self, operation: Operation, sges: usize, inline: Option<usize>) -> Vec<String> {
        if let Some(missing) = self.operations.iter().find(|missing| missing.what == operation) {
            return vec![self.unsupported(operation.name(), missing.source)];
        }
        if let Some(len) = inline {
            let name = format!("inline data of {}", operation.name());
            return self.above(&name, wide(len), self.inline.as_ref()).into_iter().collect();
        }
        let bound = match operation {
            Operation::Read => self.read_sges.as_ref(),
            Operation::Write | Operation::WriteImmediate => {
                self.write_sges.as_ref().or(self.send_sges.as_ref())
            }
            Operation::Send | Operation::SendInvalidate => self.send_sges.as_ref(),
            Operation::Atomic | Operation::BindWindow | Operation::LocalInvalidate => None,
        };
        let name = format!("num_sge of the {}", operation.name());
        self.above(&name, wide(sges), bound).into_iter().collect()
    }

    /// Checks `max_rd_atomic`, the outstanding Reads and atomics of a queue pair as requester.
    pub(super) fn outstanding_reads(&self, max_rd_atomic: u32) -> Option<String> {
        match self.no_reads_attribute {
            Some(source) => Some(self.unsupported("the attribute max_rd_atomic", source)),
            None => self.above("max_rd_atomic", max_rd_atomic.into(), self.reads.as_ref()),
        }
    }

    /// Checks the depth of a send queue. One more element is room for immediate data.
    fn send_depth(&self, wr: u32, sges: u32, inline: u32) -> Option<String> {
        let quanta = self.depth.as_ref()?;
        let shift = quanta_shift(sges.saturating_add(1), inline);
        self.depth("max_send_wr", wr, shift, quanta.send_reserved, quanta)
    }

    /// Checks the depth of a receive queue.
    fn receive_depth(&self, wr: u32, sges: u32) -> Option<String> {
        let quanta = self.depth.as_ref()?;
        self.depth("max_recv_wr", wr, quanta_shift(sges, 0), quanta.receive_reserved, quanta)
    }

    /// Checks a depth of requests with `1 << shift` units each. irdma rounds the size up to a power of two.
    /// The maximum is one, so that this makes no difference here.
    fn depth(&self, name: &str, wr: u32, shift: u32, reserved: u64, quanta: &Quanta) -> Option<String> {
        let max = (quanta.max - reserved) >> shift;
        let bytes = 32 << shift;
        (u64::from(wr) > max).then(|| {
            let (driver, source) = (self.driver, quanta.source);
            format!(
                "{name} is {wr}, but {driver} supports at most {max} requests of {bytes} bytes ({source})"
            )
        })
    }

    /// Returns the text for a value above its bound.
    fn above(&self, name: &str, value: u64, bound: Option<&Bound>) -> Option<String> {
        let Bound { max, source } = bound?;
        let driver = self.driver;
        (value > *max).then(|| format!("{name} is {value}, but {driver} supports at most {max} ({source})"))
    }

    /// Returns the text for something that is not supported.
    fn unsupported(&self, what: &str, source: &str) -> String {
        format!("{} does not support {what} ({source})", self.driver)
    }
}

/// Returns the binary logarithm of the units that a request of irdma takes (`irdma_get_wqe_shift` in
/// `providers/irdma/uk.c`, generation 2).
fn quanta_shift(sges: u32, inline: u32) -> u32 {
    match (sges, inline) {
        (..=1, ..=8) => 0,
        (..4, ..=39) => 1,
        (..8, ..=101) => 2,
        _ => 3,
    }
}

/// Returns a length as the type of the bounds.
fn wide(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// Returns the name of a type of queue pair, or its number.
fn type_name(kind: u32) -> String {
    match kind {
        RC => "IBV_QPT_RC".to_owned(),
        UC => "IBV_QPT_UC".to_owned(),
        UD => "IBV_QPT_UD".to_owned(),
        RAW_PACKET => "IBV_QPT_RAW_PACKET".to_owned(),
        XRC_SEND => "IBV_QPT_XRC_SEND".to_owned(),
        XRC_RECV => "IBV_QPT_XRC_RECV".to_owned(),
        DRIVER => "IBV_QPT_DRIVER".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cap(
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    ) -> ibv_qp_cap {
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }

    #[test]
    fn only_drivers_have_limits() {
        assert!(of(Check::Off).is_none() && of(Check::On).is_none());
        for (check, driver) in [(Check::Mlx5, "mlx5"), (Check::Irdma, "irdma"), (Check::Efa, "efa")] {
            assert!(of(check).unwrap().driver.starts_with(driver));
        }
    }

    #[test]
    fn a_modest_queue_pair_fits() {
        assert!(MLX5.queue_pair(RC, &cap(128, 128, 1, 1, 64), true).is_empty());
        assert!(IRDMA.queue_pair(RC, &cap(128, 128, 1, 1, 64), false).is_empty());
        assert!(EFA.queue_pair(UD, &cap(128, 128, 2, 1, 32), false).is_empty());
    }

    #[test]
    fn texts_name_value_limit_and_source() {
        let found = IRDMA.queue_pair(RC, &cap(16, 16, 1, 1, 256), false);
        assert_eq!(
            found,
            ["max_inline_data is 256, but irdma (E800 series) supports at most 101 \
              (IRDMA_MAX_INLINE_DATA_SIZE, drivers/infiniband/hw/irdma/user.h, Linux 6.12)"]
        );
        let found = EFA.queue_pair(RC, &cap(16, 16, 1, 1, 0), true);
        assert!(found.len() == 2 && found[0].starts_with("efa does not support qp_type IBV_QPT_RC"));
    }

    #[test]
    fn depth_of_irdma_depends_on_the_size_of_requests() {
        // One element and room for immediate data: 64 bytes. (32768 - 258) / 2 = 16255.
        assert!(IRDMA.queue_pair(RC, &cap(16255, 16, 1, 1, 0), false).is_empty());
        assert_eq!(IRDMA.queue_pair(RC, &cap(16256, 16, 1, 1, 0), false).len(), 1);
        // (32768 - 258) / 8 = 4063, the max_qp_wr that the driver reports.
        assert!(IRDMA.queue_pair(RC, &cap(4063, 4095, 13, 13, 101), false).is_empty());
        assert_eq!(IRDMA.queue_pair(RC, &cap(4064, 4096, 13, 13, 101), false).len(), 2);
    }

    #[test]
    fn requests() {
        assert!(MLX5.request(Operation::Read, 30, None).is_empty());
        assert_eq!(MLX5.request(Operation::Read, 31, None).len(), 1);
        assert!(MLX5.request(Operation::Atomic, 1, None).is_empty());
        assert_eq!(IRDMA.request(Operation::Atomic, 1, None).len(), 1);
        assert_eq!(IRDMA.request(Operation::Write, 1, Some(102)).len(), 1);
        assert!(EFA.request(Operation::Send, 2, None).is_empty());
        assert_eq!(EFA.request(Operation::Write, 2, None).len(), 1);
        assert_eq!(EFA.request(Operation::SendInvalidate, 1, None).len(), 1);
    }

    #[test]
    fn other_objects() {
        assert!(IRDMA.completion_queue(1_048_574).is_none() && IRDMA.completion_queue(1_048_575).is_some());
        assert!(MLX5.shared_receive_queue().is_none() && EFA.shared_receive_queue().is_some());
        assert!(MLX5.memory_window().is_none() && IRDMA.memory_window().is_some());
        assert!(MLX5.region(u64::MAX, 0x3ff).is_empty() && EFA.region(4096, 0x7).is_empty());
        assert_eq!(IRDMA.region(u64::MAX, 1 << 6).len(), 2);
        assert_eq!(EFA.region(4096, 0xf).len(), 1);
        assert!(MLX5.outstanding_reads(128).is_none() && MLX5.outstanding_reads(129).is_some());
        assert!(EFA.outstanding_reads(1).is_some());
    }
}
