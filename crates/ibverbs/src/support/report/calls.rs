//! Calls that were refused.

use crate::support::persona;
use ironwarp_rnic::sync::lock;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Logs that a call was refused. `call` is the path of an item inside the function.
#[cold]
pub(crate) fn log_refused_call(call: &str, errno: c_int, why: Option<&str>) {
    // This may be the very first call, which sets up the log.
    let _ = persona::config();
    let name = Call(call);
    let waited = why.is_none() && errno != libc::EINVAL && name.to_string().starts_with("rdma_");
    if waited || name.is_rsocket() {
        // Whatever event the call waited for was logged when it came.
        return tracing::info!(errno = %ErrnoName(errno), "{name} failed");
    }
    let why = why.unwrap_or("an argument is invalid, or not allowed in the current state");
    let errno = ErrnoName(errno);
    match errno.0 {
        // libfabric probes for the maximum this way.
        libc::EINVAL if why.starts_with("max_inline_data") => tracing::info!(%errno, "{name}: {why}"),
        // The queue is full, and some programs rely on that error.
        libc::ENOMEM if name.to_string().starts_with("ibv_post") => tracing::info!(%errno, "{name}: {why}"),
        // Not an error: no event yet, or interrupted by a signal.
        libc::EAGAIN | libc::EINTR => {}
        // Programs look for entries this way.
        libc::ENOENT | libc::ENODATA => tracing::info!(%errno, "{name}: {why}"),
        libc::EOPNOTSUPP => log_unsupported_call(&name.to_string(), why),
        _ => tracing::warn!(%errno, "{name}: {why}"),
    }
}

/// Calls that UCX and NCCL make in every process to probe a device. They expect to be refused.
const PROBES: [&str; 3] = ["ibv_reg_dmabuf_mr", "ibv_query_ece", "ibv_set_ece"];

/// Logs that a call needs a feature that the adapter does not have. Once per call at level `warn`, because
/// programs probe for features repeatedly.
#[cold]
pub(crate) fn log_unsupported_call(call: &str, why: &str) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let _ = persona::config();
    let errno = ErrnoName(libc::EOPNOTSUPP);
    if PROBES.contains(&call) {
        return tracing::debug!(%errno, "{call}: {why}");
    }
    let first = lock(&LOGGED).insert(call.to_owned());
    if first {
        tracing::warn!(%errno, "{call}: {why}");
    } else {
        tracing::info!(%errno, "{call}: {why}");
    }
}

/// Logs that a program looks for management datagrams. Once, because it may look for several files.
#[cold]
pub(crate) fn log_no_management(path: &str) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let _ = persona::config();
    if !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{path}: the device has no management datagrams (MADs), so opensm, perfquery and other programs that \
             need umad cannot use it: use `ibstat`, or the counters in /sys/class/infiniband"
        );
    }
}

/// Logs that a program asks the kernel for its RDMA devices. A program that has also asked the library found
/// the device there and needs no warning: UCX 1.23 asks both.
#[cold]
pub(crate) fn log_no_netlink(device_is_used: bool) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let _ = persona::config();
    if device_is_used {
        tracing::debug!("NETLINK_RDMA: the kernel does not know the device");
    } else if !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "NETLINK_RDMA: the kernel does not know the device, so `rdma link` does not show it: use `ibv_devinfo`, `ibstat` or \
             `ironwarp devices`"
        );
    }
}

/// The C name of a function, from the path of an item inside it. Functions that inline code calls through a
/// table lack the prefix.
struct Call<'p>(&'p str);

impl Call<'_> {
    /// Whether it is an rsocket call, whose errors are those of ordinary sockets, so programs expect them.
    fn is_rsocket(&self) -> bool {
        self.0.contains("::rsocket::")
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.0.rsplit("::").skip(1).filter(|part| !part.starts_with('{'));
        let name = parts.next().unwrap_or(self.0).trim_start_matches('_');
        match self.is_rsocket() || ["ibv_", "rdma_"].iter().any(|front| name.starts_with(front)) {
            true => f.write_str(name),
            false => write!(f, "ibv_{name}"),
        }
    }
}

/// The name of an errno, or its number.
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
