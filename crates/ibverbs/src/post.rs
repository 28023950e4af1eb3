//! The data path from C: chains of work requests become requests of the adapter. Before this: inline code of the headers;
//! after: the queue pair.
#![expect(unsafe_code, reason = "entry points of the C ABI, and lists of C")]

use crate::abi::*;
use crate::ah::Ah;
use crate::errno::Errno;
use crate::mw;
use crate::object::{find, put, trusted};
use crate::qp::{Kind, MOST_SGES, Qp};
use crate::report::{self, Hex};
use ironwarp_rnic::datagram::{DatagramRequest, Destination};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::{Data, Operation, ReceiveRequest, Sge, Sges, WorkRequest, WrId};
use ironwarp_wire::{AtomicOp, Place, Tag};
use std::ffi::{c_int, c_uint};
use std::fmt;

/// A list that is on the stack as long as it is short.
const FEW: usize = 4;

/// A structure of C that may be anywhere: programs put requests and their lists into packed structures of their own
/// (libiscsi does), which the processor does not mind.
#[repr(C, packed)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loose<T: Copy>(pub(crate) T);

impl<T: Copy> Loose<T> {
    fn get(self) -> T {
        self.0
    }
}

/// A request of C, if there is one.
///
/// # Safety
/// `wr` is NULL, or a request of C, whole.
unsafe fn loose<T: Copy>(wr: *const T) -> Option<T> {
    // SAFETY: the caller's word; this form needs no alignment.
    unsafe { wr.cast::<Loose<T>>().as_ref() }.map(|wr| wr.get())
}

/// A scatter/gather list of C, as far as it is there.
///
/// # Safety
/// `list` has `count` elements.
pub(crate) unsafe fn elements<'l>(list: *const ibv_sge, count: c_int) -> Result<&'l [Loose<ibv_sge>], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(_) if list.is_null() => Err(Errno::INVALID.because("sg_list is NULL, and num_sge is not 0")),
        Ok(count) if count <= MOST_SGES as usize => {
            // SAFETY: the caller's word.
            Ok(unsafe { std::slice::from_raw_parts(list.cast(), count) })
        }
        _ => Err(Errno::INVALID.because(format_args!("num_sge is {count}, {MOST_SGES} are possible"))),
    }
}

pub(crate) fn sges(list: &[Loose<ibv_sge>]) -> Sges {
    let convert = |sge: &Loose<ibv_sge>| {
        let ibv_sge { addr, length, lkey } = sge.get();
        Sge { tag: Tag(lkey), addr, len: length }
    };
    match *list {
        [] => Sges::default(),
        [ref one] => convert(one).into(),
        _ if list.len() <= FEW => {
            let mut few = [Sge::default(); FEW];
            few.iter_mut().zip(list).for_each(|(to, from)| *to = convert(from));
            Sges::from(&few[..list.len()])
        }
        _ => Sges::from(&list.iter().map(convert).collect::<Vec<_>>()[..]),
    }
}

/// The bytes of a request that carries them itself: copied now, so that the program may use its memory again at once.
///
/// # Safety
/// The elements are memory of the program that can be read.
pub(crate) unsafe fn copied(list: &[Loose<ibv_sge>], most: u32) -> Result<Data, Errno> {
    let list = || list.iter().map(|sge| sge.get());
    let len: u64 = list().map(|sge| u64::from(sge.length)).sum();
    if len > u64::from(most) {
        return Err(
            Errno::INVALID.because(format_args!("{len} bytes to be sent inline, max_inline_data is {most}"))
        );
    }
    if list().any(|sge| sge.addr == 0 && sge.length > 0) {
        return Err(Errno::INVALID.because("addr of an element is NULL"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
    for sge in list().filter(|sge| sge.length > 0) {
        // SAFETY: the caller's word.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize)
        });
    }
    Ok(Data::Inline(bytes.into()))
}

/// # Safety
/// `wr` is a request of C, whole.
unsafe fn data(qp: &Qp, wr: &ibv_send_wr) -> Result<Data, Errno> {
    // SAFETY: the caller's word.
    let list = unsafe { elements(wr.sg_list, wr.num_sge)? };
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    match wr.opcode {
        _ if !inline => Ok(Data::Memory(sges(list))),
        IBV_WR_RDMA_READ | IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
            Err(Errno::INVALID.because("IBV_SEND_INLINE does not go with Reads and atomic operations"))
        }
        // SAFETY: the program asks that they be read now.
        _ => unsafe { copied(list, qp.init().cap.max_inline_data) },
    }
}

pub(crate) fn is_signaled(qp: &Qp, flags: c_uint) -> bool {
    qp.init().sq_sig_all != 0 || flags & IBV_SEND_SIGNALED != 0
}

/// A request for a connection.
///
/// # Safety
/// `wr` is a request of C, whole.
unsafe fn request(qp: &Qp, wr: &ibv_send_wr) -> Result<WorkRequest, Errno> {
    // SAFETY: these members are valid for their opcodes; the bytes of all are there.
    let (rdma, atomic, bind) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.extra.bind_mw) };
    let place = Place { tag: Tag(rdma.rkey), offset: rdma.remote_addr };
    let word = Place { tag: Tag(atomic.rkey), offset: atomic.remote_addr };
    let (operation, immediate) = match wr.opcode {
        IBV_WR_SEND => (Operation::Send { invalidate: None }, false),
        IBV_WR_SEND_WITH_IMM => (Operation::Send { invalidate: None }, true),
        IBV_WR_SEND_WITH_INV => (Operation::Send { invalidate: Some(Tag(wr.imm_data)) }, false),
        IBV_WR_RDMA_WRITE => (Operation::Write(place), false),
        IBV_WR_RDMA_WRITE_WITH_IMM => (Operation::Write(place), true),
        IBV_WR_RDMA_READ => (Operation::Read(place), false),
        IBV_WR_ATOMIC_CMP_AND_SWP => (compare_swap(word, atomic.compare_add, atomic.swap), false),
        IBV_WR_ATOMIC_FETCH_AND_ADD => (fetch_add(word, atomic.compare_add), false),
        IBV_WR_LOCAL_INV => (Operation::Invalidate(Tag(wr.imm_data)), false),
        IBV_WR_BIND_MW => (mw::bind_operation(bind.mw, bind.rkey, &bind.bind_info)?, false),
        _ => return Err(Errno::INVALID.because(format_args!("opcode {} is unknown", wr.opcode))),
    };
    let data = match wr.opcode {
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => Data::Memory(Sges::default()),
        // SAFETY: the caller's word.
        _ => unsafe { data(qp, wr)? },
    };
    Ok(WorkRequest {
        signaled: is_signaled(qp, wr.send_flags),
        fence: wr.send_flags & IBV_SEND_FENCE != 0,
        solicited: wr.send_flags & IBV_SEND_SOLICITED != 0,
        immediate: immediate.then(|| u32::from_be(wr.imm_data)),
        srq: if qp.is_xrc() { wr.qp_type.xrc.remote_srqn } else { 0 },
        ..WorkRequest::new(wr.wr_id, operation, data)
    })
}

pub(crate) fn compare_swap(target: Place, compare: u64, swap: u64) -> Operation {
    let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
    Operation::Atomic { target, op: AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } }
}

pub(crate) fn fetch_add(target: Place, add: u64) -> Operation {
    Operation::Atomic { target, op: AtomicOp::FetchAdd { add, mask: 0 } }
}

/// A request for a connectionless queue pair.
///
/// # Safety
/// `wr` is a request of C, whole.
unsafe fn datagram(qp: &Qp, wr: &ibv_send_wr) -> Result<DatagramRequest, Errno> {
    // SAFETY: valid for this type of queue pair.
    let ud = unsafe { wr.wr.ud };
    let address = find::<Ah>(ud.ah)?.address();
    if !matches!(wr.opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM) {
        return Err(Errno::INVALID
            .because(format_args!("opcode {}: a UD queue pair sends plain messages only", wr.opcode)));
    }
    Ok(DatagramRequest {
        // SAFETY: the caller's word.
        request: unsafe { request(qp, wr)? },
        destination: Destination { address, qpn: ud.remote_qpn, qkey: ud.remote_qkey },
    })
}

/// Posts requests. All, or those before the first that cannot be: that one is named by its position.
pub(crate) fn post_all<R: Clone>(
    requests: Vec<R>,
    post: impl Fn(Vec<R>) -> Result<(), PostError>,
) -> Result<(), (usize, PostError)> {
    // The adapter takes all or none. C wants to know which one does not fit, and those before it done.
    if requests.len() == 1 {
        return post(requests).map_err(|error| (0, error));
    }
    if post(requests.clone()).is_ok() {
        return Ok(());
    }
    for (at, request) in requests.into_iter().enumerate() {
        post(vec![request]).map_err(|error| (at, error))?;
    }
    Ok(())
}

/// Posts the chain that begins at `first`: what cannot be posted, and why.
///
/// # Safety
/// A chain of C, each request of which is whole.
unsafe fn post_chain<R: Clone>(
    qp: &Qp,
    first: *mut ibv_send_wr,
    convert: unsafe fn(&Qp, &ibv_send_wr) -> Result<R, Errno>,
    post: impl Fn(Vec<R>) -> Result<(), PostError>,
) -> Result<(), (*mut ibv_send_wr, Errno)> {
    // Never more than the queue holds: the chain of a mistaken program may have no end.
    let most = qp.init().cap.max_send_wr as usize;
    let mut requests = Vec::new();
    let mut wrong = Ok(());
    let mut next = first;
    // SAFETY: the caller's word, here and below.
    while let Some(wr) = unsafe { loose(next) } {
        let about = || About(wr.wr_id, qp.number());
        if requests.len() == most {
            let errno =
                Errno::NO_MEMORY.because(format_args!("more than {most} at once, which is all that fit"));
            wrong = Err((next, errno.of(about()).told(CALL)));
            break;
        }
        // SAFETY: as above.
        match unsafe { convert(qp, &wr) } {
            Ok(request) => requests.push(request),
            Err(errno) => {
                wrong = Err((next, errno.of(about()).told(CALL)));
                break;
            }
        }
        next = wr.next;
    }
    if !requests.is_empty() {
        post_all(requests, post).map_err(|(at, error)| {
            let mut bad = first;
            for _ in 0..at {
                // SAFETY: there are more than that.
                bad = unsafe { loose(bad) }.map_or(bad, |wr| wr.next);
            }
            // SAFETY: as above.
            report::not_posted(qp.number(), unsafe { loose(bad) }.map_or(0, |wr| wr.wr_id), &error);
            (bad, Errno::from(error))
        })?;
    }
    wrong
}

/// As reports call it.
const CALL: &str = "ibv_post_send::";

/// A request, by its identifier and the number of its queue.
struct About(u64, u32);

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of queue {}", WrId(self.0), Hex(self.1))
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: inline code of the headers has read the context of this queue pair to get here.
    let qp: &Qp = unsafe { trusted(qp) };
    if qp.context().is_inherited() {
        // SAFETY: NULL or the caller's.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let posted = match qp.kind() {
        // SAFETY: the program's chain.
        Kind::Stream(pair) => unsafe { post_chain(qp, wr, request, |list| pair.post_send(list)) },
        // SAFETY: as above.
        Kind::Datagram(pair) => unsafe { post_chain(qp, wr, datagram, |list| pair.qp().post_send(list)) },
    };
    match posted {
        Ok(()) => 0,
        Err((wr, errno)) => {
            // SAFETY: NULL or the caller's.
            unsafe { put(bad, wr) };
            errno.0
        }
    }
}

/// Posts a chain of receives, one after the other.
///
/// # Safety
/// A chain of C, each request of which is whole.
pub(crate) unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    (call, queue, most): (&str, u32, usize),
    post: impl Fn(ReceiveRequest) -> Result<(), PostError>,
) -> c_int {
    // Never more than the queue holds, as with those to be sent.
    let mut posts = 0;
    // SAFETY: the caller's word, here and below.
    while let Some(request) = unsafe { loose(wr) } {
        // SAFETY: as above.
        let list = unsafe { elements(request.sg_list, request.num_sge) };
        let posted = list.and_then(|list| {
            if posts == most {
                return Err(
                    Errno::NO_MEMORY.because(format_args!("more than {most} at once, which is all that fit"))
                );
            }
            posts += 1;
            post(ReceiveRequest { id: request.wr_id, buffers: sges(list) }).map_err(|error| match error {
                PostError::Full { .. } => Errno::from(error),
                _ => Errno::from(error.clone()).because(error),
            })
        });
        if let Err(errno) = posted {
            errno.of(About(request.wr_id, queue)).told(call);
            // SAFETY: NULL or the caller's.
            unsafe { put(bad, wr) };
            return errno.0;
        }
        wr = request.next;
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: inline code of the headers has read the context of this queue pair to get here.
    let qp: &Qp = unsafe { trusted(qp) };
    if qp.context().is_inherited() {
        // SAFETY: NULL or the caller's.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let name = ("ibv_post_recv::", qp.number(), qp.init().cap.max_recv_wr as usize);
    match qp.kind() {
        Kind::Stream(pair) => {
            let pair = pair.qp();
            // SAFETY: the program's chain.
            unsafe { post_receives(wr, bad, name, |request| pair.post_receive(request)) }
        }
        // SAFETY: as above.
        Kind::Datagram(pair) => unsafe {
            post_receives(wr, bad, name, |request| pair.qp().post_receive(request))
        },
    }
}
