//! Logs calls of the program that failed.

use crate::support::persona;
use ironwarp_rnic::sync::lock;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Logs that a call failed with `errno`, at a level that depends on whether programs expect the error. `call` is the
/// path of an item inside the function that C called. `why` is the reason, if the function gave one.
#[cold]
pub(crate) fn log_refused_call(call: &str, errno: c_int, why: Option<&str>) {
    persona::install_log();
    let name = Call(call);
    // A call of librdmacm that waits for an event returns the error of the event, which was logged with its cause
    // when it arrived.
    let is_logged_event = why.is_none() && errno != libc::EINVAL && name.to_string().starts_with("rdma_");
    if is_logged_event || name.is_rsocket() {
        return tracing::info!(errno = %ErrnoName(errno), "{name} failed");
    }
    let why = why.unwrap_or("an argument is invalid, or not allowed in the current state");
    let errno = ErrnoName(errno);
    match errno.0 {
        // libfabric finds the maximum by trying values.
        libc::EINVAL if why.starts_with("max_inline_data") => tracing::info!(%errno, "{name}: {why}"),
        // The queue is full. Some programs post until they get this error.
        libc::ENOMEM if name.to_string().starts_with("ibv_post") => tracing::info!(%errno, "{name}: {why}"),
        // There is no event yet, or a signal arrived. Neither is a failure.
        libc::EAGAIN | libc::EINTR => {}
        // Programs enumerate entries until they get this error.
        libc::ENOENT | libc::ENODATA => tracing::info!(%errno, "{name}: {why}"),
        libc::EOPNOTSUPP => log_unsupported_call(&name.to_string(), why),
        _ => tracing::warn!(%errno, "{name}: {why}"),
    }
}

/// Calls by which UCX and NCCL probe a device in every process. Both expect these calls to fail.
const PROBES: [&str; 3] = ["ibv_reg_dmabuf_mr", "ibv_query_ece", "ibv_set_ece"];

/// Logs that `call` needs a feature that the adapter does not have. Only the first time for each call is a warning,
/// because programs probe for features repeatedly.
#[cold]
pub(crate) fn log_unsupported_call(call: &str, why: &str) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    persona::install_log();
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

/// Logs that a program looks for the file `path` of the interface for management datagrams (umad), which the device
/// lacks. Logs this once, because a program may look for several such files. Called by the wrappers of file calls.
#[cold]
pub(crate) fn log_no_management(path: &str) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    persona::install_log();
    if !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{path}: the device has no management datagrams (MADs), so opensm, perfquery and other programs that \
             need umad cannot use it: use `ibstat`, or the counters in /sys/class/infiniband"
        );
    }
}

/// Logs that a program asks the kernel for its RDMA devices, among which the kernel will not list this one. Warns
/// once, unless the program also asked this library, as UCX 1.23 does: then it has found the device.
#[cold]
pub(crate) fn log_no_netlink(device_is_used: bool) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    persona::install_log();
    if device_is_used {
        tracing::debug!("NETLINK_RDMA: the kernel does not know the device");
    } else if !LOGGED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "NETLINK_RDMA: the kernel does not know the device, so `rdma link` does not show it: use `ibv_devinfo`, `ibstat` or \
             `ironwarp devices`"
        );
    }
}

/// A function that C called, as the path of a Rust item inside it (`function_path!`). Displays the name by which C
/// programs know the function: with the prefix `ibv_`, which the Rust names of functions lack that inline code in
/// `verbs.h` calls through a table, and without the underscore of functions that such inline code wraps
/// (`_ibv_query_gid_ex`).
struct Call<'p>(&'p str);

impl Call<'_> {
    /// Returns whether this is an rsocket call. Its errors are those of ordinary sockets, which programs handle.
    fn is_rsocket(&self) -> bool {
        self.0.contains("::rsocket::")
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `crate::verbs::mr::ibv_reg_mr::{{closure}}::inner`: skip the item, which is last, and closures.
        let mut parts = self.0.rsplit("::").skip(1).filter(|part| !part.starts_with('{'));
        let name = parts.next().unwrap_or(self.0).trim_start_matches('_');
        // The functions of rsockets (`rsend`, `riomap`) are all exported by their C names.
        let is_c_name = self.is_rsocket() || name.starts_with("ibv_") || name.starts_with("rdma_");
        if is_c_name { f.write_str(name) } else { write!(f, "ibv_{name}") }
    }
}

/// An errno. Displays its name, or its number if the name is not listed here.
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
            libc::ENETDOWN => "ENETDOWN",
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
