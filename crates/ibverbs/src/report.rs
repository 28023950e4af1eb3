//! What goes wrong, said in words on standard error: one line for each, as much as IRONWARP_LOG asks for. The words are those
//! of the adapter's own errors, which native programs see, too; here is added which object of the program it is about.
//!
//! A fault is said once: with the request that has a status for it, or else when the connection ends. Requests that are
//! flushed follow from it, and are said only to who wants to know more.

mod pairs;
mod teller;

pub(crate) use pairs::{find as find_pair, forget, know, told};
pub(crate) use teller::begin;

use crate::errno::Errno;
use crate::sync::lock;
use ironwarp_engine::ConnectError;
use ironwarp_rnic::config::ConfigError;
use ironwarp_rnic::error::{Culprit, Fault, PostError};
use ironwarp_rnic::fault::{Counts, FaultPlan};
use ironwarp_rnic::queue::{Completion, RequestError, Status, WrId};
use ironwarp_wire::private::Unreadable;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::field::display;

/// A request failed.
pub(crate) fn failed(completion: &Completion) {
    let qp = completion.qp;
    let (vendor_err, peer) = (format_args!("{:#010x}", vendor_err(completion)), pairs::peer(qp).map(display));
    let error = RequestError(completion.clone());
    if completion.status == Status::Flushed {
        tracing::info!(qp = %Hex(qp), peer, %vendor_err, "{error}");
    } else {
        tracing::warn!(qp = %Hex(qp), peer, %vendor_err, "{error}");
    }
}

/// A connection ended. Unless a request tells of it, or all is well, this does.
fn ended(qp: u32, fault: &Fault) {
    let Some(pair) = pairs::find(qp) else { return };
    let peer = pair.peer().map(display);
    let vendor_err = format_args!("{:#010x}", fault.vendor_err());
    if fault.culprit() == Culprit::Nobody || pair.qp().blames_a_request() {
        tracing::info!(qp = %Hex(qp), peer, %vendor_err, "the connection ended: {fault}");
    } else {
        tracing::warn!(qp = %Hex(qp), peer, %vendor_err, "the connection ended: {fault}");
    }
}

/// A queue pair that was told of its peer will not be connected to it.
pub(crate) fn not_connected(qp: u32, error: &ConnectError) {
    let peer = pairs::peer(qp).map(display);
    match error {
        // The program's own wish; or requests have waited too long, and tell.
        ConnectError::GivenUp | ConnectError::TimedOut => {
            tracing::info!(qp = %Hex(qp), peer, "not connected: {error}");
        }
        _ => tracing::warn!(qp = %Hex(qp), peer, "not connected: {error}"),
    }
}

/// An id will not be connected to the address that it was given.
pub(crate) fn not_reached(peer: SocketAddr, error: &ConnectError) {
    tracing::warn!(%peer, "rdma_connect failed: {error}");
}

/// A peer of another release wants to connect, and is rejected. Only the first is logged as a warning: anybody can be one.
pub(crate) fn not_taken(peer: SocketAddr, why: Unreadable) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        tracing::debug!(%peer, "rejected a connection: {why}");
    } else {
        tracing::warn!(%peer, "rejected a connection: {why}");
    }
}

/// The environment asks for what cannot be.
pub(crate) fn mistake(error: &ConfigError) {
    tracing::warn!("{error}");
}

/// A call was refused. `call` is where that happened, down to the function.
#[cold]
pub(crate) fn refused(call: &str, errno: Errno, why: Option<&str>) {
    // It may be the first call of all.
    let _ = crate::persona::config();
    let name = Call(call);
    let waited = why.is_none() && errno != Errno::INVALID && name.to_string().starts_with("rdma_");
    if waited || name.is_of_sockets() {
        // The event that the call waited for was explained when it came.
        return tracing::info!(errno = %ErrnoName(errno.0), "{name} failed");
    }
    let why = why.unwrap_or("an argument is not valid, or not possible now");
    let errno = ErrnoName(errno.0);
    match errno.0 {
        // libfabric tries how much there can be.
        libc::EINVAL if why.starts_with("max_inline_data") => tracing::info!(%errno, "{name}: {why}"),
        // The queue is full, which some programs count on.
        libc::ENOMEM if name.to_string().starts_with("ibv_post") => tracing::info!(%errno, "{name}: {why}"),
        // No fault: there is nothing yet, or a signal came.
        libc::EAGAIN | libc::EINTR => {}
        // Programs ask for what is there in this way.
        libc::ENOENT | libc::ENODATA => tracing::info!(%errno, "{name}: {why}"),
        libc::EOPNOTSUPP => unsupported(&name.to_string(), why),
        _ => tracing::warn!(%errno, "{name}: {why}"),
    }
}

/// Calls with which UCX and NCCL probe a device in every process. They expect a refusal.
const PROBES: [&str; 3] = ["ibv_reg_dmabuf_mr", "ibv_query_ece", "ibv_set_ece"];

/// A call asks for what the adapter does not have. Programs try that out, some again and again: it is said once.
#[cold]
pub(crate) fn unsupported(call: &str, why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let _ = crate::persona::config();
    let errno = ErrnoName(libc::EOPNOTSUPP);
    if PROBES.contains(&call) {
        return tracing::debug!(%errno, "{call}: {why}");
    }
    let first = lock(&SAID).insert(call.to_owned());
    if first {
        tracing::warn!(%errno, "{call}: {why}");
    } else {
        tracing::info!(%errno, "{call}: {why}");
    }
}

/// A program looks for management datagrams. It may look for several of their files: it is said once.
#[cold]
pub(crate) fn no_management(path: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let _ = crate::persona::config();
    if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{path}: the device has no management datagrams (MADs), so that opensm, perfquery and others that need umad cannot \
             use it: see `ibstat`, or the counters in /sys/class/infiniband"
        );
    }
}

/// A program asks the kernel for its RDMA devices. If it has asked the library, too, it finds the device there and needs no warning: UCX
/// (1.23) asks both.
#[cold]
pub(crate) fn no_netlink() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let _ = crate::persona::config();
    if crate::device::is_used() {
        tracing::debug!("NETLINK_RDMA: the kernel does not know the device");
    } else if !SAID.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "NETLINK_RDMA: the kernel does not know the device, so `rdma link` does not show it: use `ibv_devinfo`, `ibstat` or \
             `ironwarp devices`"
        );
    }
}

/// A function of ours as C calls it, from the path of something inside of it. Those that inline code calls through a table
/// lack the front of their names.
struct Call<'p>(&'p str);

impl Call<'_> {
    /// Of sockets over RDMA, whose errors are those of other sockets: programs expect them.
    fn is_of_sockets(&self) -> bool {
        self.0.contains("::rsocket::")
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.rsplit("::").skip(1).filter(|part| !part.starts_with('{'));
        let name = parts.next().unwrap_or(self.0).trim_start_matches('_');
        match self.is_of_sockets() || ["ibv_", "rdma_"].iter().any(|front| name.starts_with(front)) {
            true => f.write_str(name),
            false => write!(f, "ibv_{name}"),
        }
    }
}

/// An errno by its name, or by its number.
struct ErrnoName(i32);

impl fmt::Display for ErrnoName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            libc::EINVAL => "EINVAL",
            libc::EBUSY => "EBUSY",
            libc::ENOMEM => "ENOMEM",
            libc::EFAULT => "EFAULT",
            libc::E2BIG => "E2BIG",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            libc::EADDRINUSE => "EADDRINUSE",
            libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
            libc::ENODEV => "ENODEV",
            libc::ENOENT => "ENOENT",
            libc::ENODATA => "ENODATA",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::ECONNREFUSED => "ECONNREFUSED",
            libc::ENETUNREACH => "ENETUNREACH",
            libc::EMFILE => "EMFILE",
            libc::EIO => "EIO",
            libc::EPERM => "EPERM",
            number => return number.fmt(f),
        })
    }
}

/// What the faults that were asked for did.
pub(crate) fn faults(plan: &FaultPlan, seed: u64, counts: &Counts) {
    tracing::warn!("faults {plan}, seed {seed}: {counts}");
}

/// A request could not be posted. One for which there is no room may be tried again: some programs count on that.
pub(crate) fn not_posted(qp: u32, wr_id: u64, error: &PostError) {
    let (peer, id) = (pairs::peer(qp).map(display), WrId(wr_id));
    match error {
        PostError::Full { .. } => tracing::info!(qp = %Hex(qp), peer, "request {id} was not posted: {error}"),
        _ => tracing::warn!(qp = %Hex(qp), peer, "request {id} was not posted: {error}"),
    }
}

/// The cause of a failure as a number, for programs that print it; `ironwarp explain` tells what it means.
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    completion.cause.as_ref().map_or(0, |cause| cause.vendor_err())
}

/// Numbers of queue pairs as most programs print them.
pub(crate) struct Hex(pub(crate) u32);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// A program accepts a peer whose queue pair it cannot know, because it is the id's.
pub(crate) fn only_managed(peer: SocketAddr) {
    tracing::error!(%peer, "the peer's queue pair is connected by its id (rdma_create_qp): accept it with one as well");
}
