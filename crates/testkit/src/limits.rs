//! Limits and resource usage of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open descriptors to the maximum.
pub fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Returns a field of /proc/self/status, in the unit of that file (proc_pid_status(5)).
pub fn status(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
