//! The data path: posts chains of C work requests.
#![expect(unsafe_code, reason = "entry points of the C ABI, and lists of C")]

use super::work_request::{datagram, elements, read_request, request, sges};
use crate::abi::*;
use crate::objects::qp::{Kind, Qp};
use crate::objects::srq::Srq;
use crate::support::errno::Errno;
use crate::support::object::{find_unchecked, put};
use crate::support::report::{self, Hex};
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::queue::{ReceiveRequest, WrId};
use std::ffi::c_int;
use std::fmt;

/// Posts requests until one is refused, which is returned by its position.
fn post_all<R: Clone>(
    requests: Vec<R>,
    post: impl Fn(Vec<R>) -> Result<(), PostError>,
) -> Result<(), (usize, PostError)> {
    // The adapter takes all requests or none, while C expects those before the refused one to be posted.
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

/// Posts a chain of requests. Returns the first that was refused, and why.
///
/// # Safety
/// `first` is a chain of valid requests.
unsafe fn post_chain<R: Clone>(
    qp: &Qp,
    first: *mut ibv_send_wr,
    convert: unsafe fn(&Qp, &ibv_send_wr) -> Result<R, Errno>,
    post: impl Fn(Vec<R>) -> Result<(), PostError>,
) -> Result<(), (*mut ibv_send_wr, Errno)> {
    // Never more than the queue holds: a broken chain may be circular.
    let max = qp.init().cap.max_send_wr as usize;
    let mut requests = Vec::new();
    let mut wrong = Ok(());
    let mut next = first;
    // SAFETY: guaranteed by the caller, here and below.
    while let Some(wr) = unsafe { read_request(next) } {
        let about = || RequestName(wr.wr_id, qp.number());
        if requests.len() == max {
            let errno = Errno::NO_MEMORY
                .because(format_args!("more than {max} requests at once, the depth of the queue"));
            wrong = Err((next, errno.about(about()).log(CALL)));
            break;
        }
        // SAFETY: as above.
        match unsafe { convert(qp, &wr) } {
            Ok(request) => requests.push(request),
            Err(errno) => {
                wrong = Err((next, errno.about(about()).log(CALL)));
                break;
            }
        }
        next = wr.next;
    }
    if !requests.is_empty() {
        post_all(requests, post).map_err(|(at, error)| {
            let mut bad = first;
            for _ in 0..at {
                // SAFETY: the chain has more than `at` requests.
                bad = unsafe { read_request(bad) }.map_or(bad, |wr| wr.next);
            }
            // SAFETY: as above.
            report::log_not_posted(
                qp.number(),
                unsafe { read_request(bad) }.map_or(0, |wr| wr.wr_id),
                &error,
            );
            (bad, Errno::from(error))
        })?;
    }
    wrong
}

/// The call, as the log names it.
const CALL: &str = "ibv_post_send::";

/// A request, by its identifier and the number of its queue.
struct RequestName(u64, u32);

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of queue {}", WrId(self.0), Hex(self.1))
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue pair, so it is alive.
    let qp: &Qp = unsafe { find_unchecked(qp) };
    if qp.context().is_inherited() {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let posted = match qp.kind() {
        // SAFETY: a chain of requests by the caller's contract.
        Kind::Stream(pair) => unsafe { post_chain(qp, wr, request, |list| pair.post_send(list)) },
        // SAFETY: as above.
        Kind::Datagram(pair) => unsafe { post_chain(qp, wr, datagram, |list| pair.qp().post_send(list)) },
    };
    match posted {
        Ok(()) => 0,
        Err((wr, errno)) => {
            // SAFETY: NULL, or valid by the caller's contract.
            unsafe { put(bad, wr) };
            errno.0
        }
    }
}

/// A queue that receives are posted to.
struct ReceiveQueue {
    /// The function that the program called, as the log names it.
    call: &'static str,
    number: u32,
    depth: usize,
}

/// Posts a chain of receives, one after the other.
///
/// # Safety
/// `wr` is a chain of valid requests.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    queue: ReceiveQueue,
    post: impl Fn(ReceiveRequest) -> Result<(), PostError>,
) -> c_int {
    // Never more than the queue holds, as in `post_chain`.
    let mut posts = 0;
    // SAFETY: guaranteed by the caller, here and below.
    while let Some(request) = unsafe { read_request(wr) } {
        // SAFETY: as above.
        let list = unsafe { elements(request.sg_list, request.num_sge) };
        let posted = list.and_then(|list| {
            if posts == queue.depth {
                let max = queue.depth;
                return Err(Errno::NO_MEMORY
                    .because(format_args!("more than {max} requests at once, the depth of the queue")));
            }
            posts += 1;
            post(ReceiveRequest { id: request.wr_id, buffers: sges(list) }).map_err(|error| match error {
                PostError::Full { .. } => Errno::from(error),
                _ => Errno::from(error.clone()).because(error),
            })
        });
        if let Err(errno) = posted {
            errno.about(RequestName(request.wr_id, queue.number)).log(queue.call);
            // SAFETY: NULL, or valid by the caller's contract.
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
    // SAFETY: inline code of the headers got here through the context of this queue pair, so it is alive.
    let qp: &Qp = unsafe { find_unchecked(qp) };
    if qp.context().is_inherited() {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let depth = qp.init().cap.max_recv_wr as usize;
    let queue = ReceiveQueue { call: "ibv_post_recv::", number: qp.number(), depth };
    match qp.kind() {
        Kind::Stream(pair) => {
            let pair = pair.qp();
            // SAFETY: a chain of requests by the caller's contract.
            unsafe { post_receives(wr, bad, queue, |request| pair.post_receive(request)) }
        }
        // SAFETY: as above.
        Kind::Datagram(pair) => unsafe {
            post_receives(wr, bad, queue, |request| pair.qp().post_receive(request))
        },
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue, so it is alive.
    let srq: &Srq = unsafe { find_unchecked(srq) };
    if srq.context().is_inherited() {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    // SAFETY: a chain of requests by the caller's contract.
    unsafe {
        let (number, depth) = (srq.inner().id(), srq.inner().query().depth);
        let queue = ReceiveQueue { call: "ibv_post_srq_recv::", number, depth };
        post_receives(wr, bad, queue, |request| srq.inner().post(request))
    }
}
