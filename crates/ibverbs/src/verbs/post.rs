//! `ibv_post_send`, `ibv_post_recv` and `ibv_post_srq_recv`: posts chains of C work requests. This is the data path, so
//! queues are not looked up in the table of live objects.
#![expect(unsafe_code, reason = "entry points of the C ABI, and lists of C")]

use super::work_request::{convert_datagram, convert_request, convert_sges, read_request, sge_list};
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

/// Posts several requests up to the first that is refused. Returns the position of that one, and why.
fn post_until_refused<R: Clone>(
    requests: Vec<R>,
    post: impl Fn(Vec<R>) -> Result<(), PostError>,
    post_one: impl Fn(R) -> Result<(), PostError>,
) -> Result<(), (usize, PostError)> {
    if post(requests.clone()).is_ok() {
        return Ok(());
    }
    // `post` takes all requests or none, while C expects that those before the refused one are posted.
    for (at, request) in requests.into_iter().enumerate() {
        post_one(request).map_err(|error| (at, error))?;
    }
    Ok(())
}

/// Posts a chain of send requests up to the first that is refused. Returns that one, and why. `post_one` posts a chain of
/// one without a list (requirement X5), and `post` any other.
///
/// # Safety
/// `first` is NULL or a chain of valid requests.
unsafe fn post_chain<R: Clone>(
    qp: &Qp,
    first: *mut ibv_send_wr,
    convert: unsafe fn(&Qp, &ibv_send_wr) -> Result<R, Errno>,
    post: impl Fn(Vec<R>) -> Result<(), PostError>,
    post_one: impl Fn(R) -> Result<(), PostError>,
) -> Result<(), (*mut ibv_send_wr, Errno)> {
    // Stop after as many requests as the queue holds, because a faulty chain may be circular.
    let max = qp.init().cap.max_send_wr as usize;
    // Names a request that is not posted, in the log.
    let refused = |wr: *mut ibv_send_wr, wr_id: u64, errno: Errno| {
        (wr, errno.about(RequestName { wr_id, queue: qp.number() }).log(POST_SEND))
    };
    // SAFETY: `first` is a link of the chain, which the caller guarantees to be valid.
    if let Some(only) = unsafe { read_request(first) }.filter(|wr| wr.next.is_null() && max > 0) {
        // SAFETY: the pointers of a valid request are valid.
        let request = unsafe { convert(qp, &only) }.map_err(|errno| refused(first, only.wr_id, errno))?;
        return post_one(request).map_err(|error| (first, log_refusal(qp, only.wr_id, error)));
    }
    let mut requests = Vec::new();
    // The request that cannot be converted, if any. Those before it are posted.
    let mut unconverted = Ok(());
    let mut next = first;
    // SAFETY: `next` is a link of the chain, which the caller guarantees to be valid.
    while let Some(wr) = unsafe { read_request(next) } {
        if requests.len() == max {
            let errno = Errno::NO_MEMORY
                .because(format_args!("more than {max} requests at once, the depth of the queue"));
            unconverted = Err(refused(next, wr.wr_id, errno));
            break;
        }
        // SAFETY: the pointers of a valid request are valid.
        match unsafe { convert(qp, &wr) } {
            Ok(request) => requests.push(request),
            Err(errno) => {
                unconverted = Err(refused(next, wr.wr_id, errno));
                break;
            }
        }
        next = wr.next;
    }
    if !requests.is_empty() {
        post_until_refused(requests, post, post_one).map_err(|(at, error)| {
            let mut bad = first;
            for _ in 0..at {
                // SAFETY: this link of the chain was read above, and so were the `at` links after the first.
                bad = unsafe { read_request(bad) }.map_or(bad, |wr| wr.next);
            }
            // SAFETY: `bad` is a link of the chain that was read above.
            let wr_id = unsafe { read_request(bad) }.map_or(0, |wr| wr.wr_id);
            (bad, log_refusal(qp, wr_id, error))
        })?;
    }
    unconverted
}

/// Logs that the adapter refused a request. Returns the errno.
fn log_refusal(qp: &Qp, wr_id: u64, error: PostError) -> Errno {
    report::log_not_posted(qp.number(), wr_id, &error);
    Errno::from(error)
}

/// A path inside `ibv_post_send`, from which [`Errno::log`] derives the name of the call. Not `function_path!`, which
/// would name a function of this file.
const POST_SEND: &str = "ibv_post_send::";

/// A request, as messages name it.
struct RequestName {
    wr_id: u64,
    /// Number of the queue pair or shared receive queue.
    queue: u32,
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of queue {}", WrId(self.wr_id), Hex(self.queue))
    }
}

/// `ibv_post_send`. Returns zero, or the errno after writing the refused request to `bad`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue pair, so the queue pair is alive.
    let qp: &Qp = unsafe { find_unchecked(qp) };
    if qp.context().is_inherited() {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let posted = match qp.kind() {
        // SAFETY: NULL or a chain of valid requests, by the caller's contract.
        Kind::Stream(pair) => unsafe {
            post_chain(qp, wr, convert_request, |list| pair.post_send(list), |one| pair.post_send([one]))
        },
        // SAFETY: NULL or a chain of valid requests, by the caller's contract.
        Kind::Datagram(pair) => unsafe {
            let post = |list| pair.qp().post_send(list);
            post_chain(qp, wr, convert_datagram, post, |one| post(vec![one]))
        },
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
    /// A path inside the function that the program called, from which [`Errno::log`] derives its name.
    call: &'static str,
    number: u32,
    /// Number of requests that the queue holds.
    depth: usize,
}

/// Posts a chain of receives one after the other, up to the first that is refused. Returns zero, or the errno after
/// writing the refused request to `bad`.
///
/// # Safety
/// `wr` is NULL or a chain of valid requests, and `bad` is NULL or valid for writes.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    queue: ReceiveQueue,
    post: impl Fn(ReceiveRequest) -> Result<(), PostError>,
) -> c_int {
    // Stop after as many requests as the queue holds, because a faulty chain may be circular.
    let mut posts = 0;
    // SAFETY: `wr` is a link of the chain, which the caller guarantees to be valid.
    while let Some(request) = unsafe { read_request(wr) } {
        // SAFETY: the list of a valid request is valid.
        let list = unsafe { sge_list(request.sg_list, request.num_sge) };
        let posted = list.and_then(|list| {
            if posts == queue.depth {
                let max = queue.depth;
                return Err(Errno::NO_MEMORY
                    .because(format_args!("more than {max} requests at once, the depth of the queue")));
            }
            posts += 1;
            post(ReceiveRequest { id: request.wr_id, buffers: convert_sges(list) }).map_err(|error| {
                match error {
                    PostError::Full { .. } => Errno::from(error),
                    _ => Errno::from(error.clone()).because(error),
                }
            })
        });
        if let Err(errno) = posted {
            let name = RequestName { wr_id: request.wr_id, queue: queue.number };
            errno.about(name).log(queue.call);
            // SAFETY: NULL or valid, by the caller's contract.
            unsafe { put(bad, wr) };
            return errno.0;
        }
        wr = request.next;
    }
    0
}

/// `ibv_post_recv`. Returns as `post_send` does.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue pair, so the queue pair is alive.
    let qp: &Qp = unsafe { find_unchecked(qp) };
    if qp.context().is_inherited() {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let depth = qp.init().cap.max_recv_wr as usize;
    let queue = ReceiveQueue { call: "ibv_post_recv::", number: qp.number(), depth };
    match qp.kind() {
        // SAFETY: valid by the caller's contract.
        Kind::Stream(pair) => unsafe { post_receives(wr, bad, queue, |request| pair.post_receive(request)) },
        // SAFETY: valid by the caller's contract.
        Kind::Datagram(pair) => unsafe {
            post_receives(wr, bad, queue, |request| pair.qp().post_receive(request))
        },
    }
}

/// `ibv_post_srq_recv`. Returns as `post_send` does.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: inline code of the headers got here through the context of this queue, so the queue is alive.
    let srq: &Srq = unsafe { find_unchecked(srq) };
    if srq.context().is_inherited() {
        // SAFETY: NULL, or valid by the caller's contract.
        unsafe { put(bad, wr) };
        return Errno::INHERITED.0;
    }
    let (number, depth) = (srq.inner().id(), srq.inner().query().depth);
    let queue = ReceiveQueue { call: "ibv_post_srq_recv::", number, depth };
    // SAFETY: valid by the caller's contract.
    unsafe { post_receives(wr, bad, queue, |request| srq.inner().post(request)) }
}
