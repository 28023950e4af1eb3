//! Files in memory (memfd), which processes share by mapping them.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::Resource;
use std::io;
use std::os::fd::OwnedFd;

/// Creates a file in memory of `len` zero bytes. Pages are allocated when they are first used.
///
/// The file is sealed: whoever has its descriptor can change its bytes, but not its length. So an access to a mapping
/// cannot raise SIGBUS because the file has shrunk. Nobody can add seals, which could forbid further mappings.
pub(crate) fn create(len: usize) -> io::Result<OwnedFd> {
    // `ftruncate` beyond this limit would not only fail but also raise SIGXFSZ.
    let max_size = rustix::process::getrlimit(Resource::Fsize).current;
    if max_size.is_some_and(|max_size| max_size < len as u64) {
        return Err(Errno::FBIG.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(c"ironwarp-buffer", flags)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Checks that a file of another process has at least `len` bytes, and is sealed so that it keeps them.
pub(super) fn check(file: &OwnedFd, len: usize) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default();
    if !seals.contains(SealFlags::SHRINK) || size < len as u64 {
        let why =
            format!("a buffer of {len} bytes is in a file of {size} bytes that is not sealed, or too short");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(())
}
