//! Converts C work requests to requests of the adapter.
#![expect(unsafe_code, reason = "lists of C")]

use crate::abi::*;
use crate::objects::ah::Ah;
use crate::objects::limits::MAX_SGES;
use crate::objects::mw;
use crate::objects::qp::{Kind, Qp};
use crate::support::errno::Errno;
use crate::support::object::find;
use ironwarp_rnic::datagram::{DatagramRequest, Destination};
use ironwarp_rnic::queue::{Data, InlineData, Operation, Sge, Sges, WorkRequest};
use ironwarp_wire::{AtomicOp, RemoteAddr, Tag};
use std::ffi::{c_int, c_uint};

/// Maximum length of a scatter/gather list that is converted without a heap allocation.
const MAX_ON_STACK: usize = 4;

/// A C structure at any alignment: programs such as libiscsi put requests and their lists into packed
/// structures.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Unaligned<T: Copy>(pub(super) T);

impl<T: Copy> Unaligned<T> {
    /// Returns a copy of the structure.
    pub(super) fn get(self) -> T {
        self.0
    }
}

/// Copies a request, which need not be aligned. Returns `None` if the pointer is NULL.
///
/// # Safety
/// `wr` is NULL or points to a valid request.
pub(super) unsafe fn read_request<T: Copy>(wr: *const T) -> Option<T> {
    // SAFETY: the caller guarantees a valid request or NULL, and `Unaligned` requires no alignment.
    unsafe { wr.cast::<Unaligned<T>>().as_ref() }.map(|wr| wr.get())
}

/// Returns the elements of a C scatter/gather list. Fails with EINVAL if `count` is negative or too large, or if
/// `list` is NULL although there are elements.
///
/// # Safety
/// `list` is NULL or has `count` elements, which are not written while the result is in use.
pub(super) unsafe fn sge_list<'l>(
    list: *const ibv_sge,
    count: c_int,
) -> Result<&'l [Unaligned<ibv_sge>], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(Errno::INVALID.because("sg_list is NULL, but num_sge is not 0")),
        Ok(count) if count <= MAX_SGES as usize => {
            // SAFETY: the list has `count` elements by the caller's contract, and `Unaligned` requires no alignment.
            Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) })
        }
        _ => Err(Errno::INVALID.because(format_args!("num_sge {count} must be between 0 and {MAX_SGES}"))),
    }
}

/// Converts a scatter/gather list. Short lists, which most requests have, need no allocation here.
pub(super) fn convert_sges(list: &[Unaligned<ibv_sge>]) -> Sges {
    let convert = |sge: &Unaligned<ibv_sge>| {
        let ibv_sge { addr, length, lkey } = sge.get();
        Sge { tag: Tag(lkey), addr, len: length }
    };
    match *list {
        [] => Sges::default(),
        [ref one] => convert(one).into(),
        _ if list.len() <= MAX_ON_STACK => {
            let mut few = [Sge::default(); MAX_ON_STACK];
            few.iter_mut().zip(list).for_each(|(to, from)| *to = convert(from));
            Sges::from(&few[..list.len()])
        }
        _ => Sges::from(&list.iter().map(convert).collect::<Vec<_>>()[..]),
    }
}

/// Copies the data of an inline request to memory of the queue pair, after which the program may reuse the memory
/// (requirement X5). Fails with EINVAL if there are more than `max_inline_data` bytes.
///
/// # Safety
/// Each element is readable memory of the program.
pub(super) unsafe fn inline_data(
    qp: &Qp,
    list: impl Iterator<Item = ibv_sge> + Clone,
) -> Result<Data, Errno> {
    let len: u64 = list.clone().map(|sge| u64::from(sge.length)).sum();
    let max = qp.init().cap.max_inline_data;
    if len > u64::from(max) {
        return Err(
            Errno::INVALID.because(format_args!("{len} bytes of inline data exceed max_inline_data {max}"))
        );
    }
    let mut list = list.filter(|sge| sge.length > 0);
    if list.clone().any(|sge| sge.addr == 0) {
        return Err(Errno::INVALID.because("addr of a scatter/gather element is NULL"));
    }
    let write = |mut to: &mut [u8]| {
        list.by_ref().for_each(|sge| {
            // SAFETY: the element is readable memory by the caller's contract, and its address is not NULL.
            let from = unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
            let (now, later) = std::mem::take(&mut to).split_at_mut(from.len());
            now.copy_from_slice(from);
            to = later;
        });
    };
    let len = usize::try_from(len).unwrap_or_default();
    Ok(Data::Inline(match qp.kind() {
        Kind::Stream(pair) => pair.inline_data(len, max as usize, write),
        Kind::Datagram(_) => InlineData::allocate(len, write),
    }))
}

/// Converts the data of a request: its scatter/gather list, or a copy of its inline data.
///
/// # Safety
/// The scatter/gather list is valid, and so is the memory that it describes if the request is inline.
unsafe fn convert_data(qp: &Qp, wr: &ibv_send_wr) -> Result<Data, Errno> {
    // SAFETY: the caller guarantees that the list is valid.
    let list = unsafe { sge_list(wr.sg_list, wr.num_sge)? };
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    match wr.opcode {
        _ if !inline => Ok(Data::Memory(convert_sges(list))),
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            Err(Errno::INVALID.because("IBV_SEND_INLINE is not allowed with Reads and atomic operations"))
        }
        // SAFETY: the caller guarantees that the memory of an inline request is readable.
        _ => unsafe { inline_data(qp, list.iter().map(|sge| sge.get())) },
    }
}

/// Returns whether a request with these `send_flags` completes with an entry in the completion queue.
pub(super) fn is_signaled(qp: &Qp, flags: c_uint) -> bool {
    qp.init().sq_sig_all != 0 || flags & IBV_SEND_SIGNALED != 0
}

/// Converts a send request, for any type of queue pair. [`convert_datagram`] adds the destination of a datagram.
///
/// # Safety
/// The pointers of the request are valid.
pub(super) unsafe fn convert_request(qp: &Qp, wr: &ibv_send_wr) -> Result<WorkRequest, Errno> {
    // SAFETY: the members are integers and raw pointers, so any bytes are valid. Those that do not belong to the
    // opcode are not used.
    let (rdma, atomic, bind) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.extra.bind_mw) };
    let addr = RemoteAddr { tag: Tag(rdma.rkey), offset: rdma.remote_addr };
    let target = RemoteAddr { tag: Tag(atomic.rkey), offset: atomic.remote_addr };
    let invalidate_rkey = Tag(wr.imm_data); // in C `invalidate_rkey` and `imm_data` are members of one union
    let (operation, has_immediate) = match wr.opcode {
        IBV_WR_SEND => (Operation::Send { invalidate: None }, false),
        IBV_WR_SEND_WITH_IMM => (Operation::Send { invalidate: None }, true),
        IBV_WR_SEND_WITH_INV => (Operation::Send { invalidate: Some(invalidate_rkey) }, false),
        IBV_WR_RDMA_WRITE => (Operation::Write(addr), false),
        IBV_WR_RDMA_WRITE_WITH_IMM => (Operation::Write(addr), true),
        IBV_WR_RDMA_READ => (Operation::Read(addr), false),
        IBV_WR_ATOMIC_CMP_AND_SWP => (compare_swap(target, atomic.compare_add, atomic.swap), false),
        IBV_WR_ATOMIC_FETCH_AND_ADD => (fetch_add(target, atomic.compare_add), false),
        IBV_WR_LOCAL_INV => (Operation::Invalidate(invalidate_rkey), false),
        IBV_WR_BIND_MW => (mw::bind_operation(qp.context(), bind.mw, bind.rkey, &bind.bind_info)?, false),
        _ => return Err(Errno::INVALID.because(format_args!("unknown opcode {}", wr.opcode))),
    };
    let data = match wr.opcode {
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => Data::Memory(Sges::default()),
        // SAFETY: the caller guarantees that the pointers of the request are valid.
        _ => unsafe { convert_data(qp, wr)? },
    };
    Ok(WorkRequest {
        signaled: is_signaled(qp, wr.send_flags),
        fence: wr.send_flags & IBV_SEND_FENCE != 0,
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
        immediate: has_immediate.then(|| u32::from_be(wr.imm_data)),
        srq: if qp.is_xrc() { wr.qp_type.xrc.remote_srqn } else { 0 },
        ..WorkRequest::new(wr.wr_id, operation, data)
    })
}

/// Returns an atomic compare-and-swap of all 64 bits at `target`.
pub(super) fn compare_swap(target: RemoteAddr, compare: u64, swap: u64) -> Operation {
    let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
    Operation::Atomic { target, op: AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } }
}

/// Returns an atomic addition to the 64 bits at `target`. A mask of zero has no field boundaries, so carries propagate
/// through all bits.
pub(super) fn fetch_add(target: RemoteAddr, add: u64) -> Operation {
    Operation::Atomic { target, op: AtomicOp::FetchAdd { add, mask: 0 } }
}

/// Converts a request for a UD queue pair, which only supports Sends.
///
/// # Safety
/// The pointers of the request are valid.
pub(super) unsafe fn convert_datagram(qp: &Qp, wr: &ibv_send_wr) -> Result<DatagramRequest, Errno> {
    // SAFETY: the member is integers and a raw pointer, so any bytes are valid.
    let ud = unsafe { wr.wr.ud };
    let address = find::<Ah>(ud.ah)?.address(qp.context())?;
    if !matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
        return Err(Errno::INVALID.because(format_args!(
            "opcode {} is not supported by a UD queue pair: use IBV_WR_SEND or IBV_WR_SEND_WITH_IMM",
            wr.opcode
        )));
    }
    Ok(DatagramRequest {
        // SAFETY: the caller guarantees that the pointers of the request are valid.
        request: unsafe { convert_request(qp, wr)? },
        destination: Destination { address, qpn: ud.remote_qpn, qkey: ud.remote_qkey },
    })
}
