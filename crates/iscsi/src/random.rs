//! Random bytes from the kernel, for challenges and session identifiers.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// Returns `N` random bytes. Early after boot this waits until the kernel's generator is seeded.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
