//! The options of a socket over RDMA, and their defaults, which an administrator may change in /etc/rdma/rsocket.

use crate::support::errno::Errno;
use std::ffi::c_int;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Level of the options that only sockets over RDMA have.
pub(super) const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;

/// Number of requests of each queue that are reserved for credits and the end of the data.
pub(super) const RESERVE: u32 = 8;

// Minimum and maximum of the options. Other values are clamped.
const BUFFER: (u32, u32) = (2048, 1 << 28);
const QUEUE: (u32, u32) = (2 * RESERVE, 1 << 15);
const INLINE: (u32, u32) = (0, 4096);
const MAPPINGS: (u32, u32) = (0, 1 << 16);

/// The options of a socket that take effect when it is connected or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Length of the send ring in bytes (SO_SNDBUF).
    pub(super) send_buffer: u32,
    /// Length of the receive ring in bytes (SO_RCVBUF).
    pub(super) receive_buffer: u32,
    /// Depth of the send queue (RDMA_SQSIZE).
    pub(super) send_queue: u32,
    /// Depth of the receive queue (RDMA_RQSIZE).
    pub(super) receive_queue: u32,
    /// Maximum length of data that is copied into the request, in bytes (RDMA_INLINE).
    pub(super) inline: u32,
    /// Maximum number of mappings of the peer (RDMA_IOMAPSIZE).
    pub(super) mappings: u32,
    /// How long `rclose` waits (SO_LINGER). `None` if the program did not set it.
    pub(super) linger: Option<Duration>,
}

impl Options {
    /// The options of a new socket.
    pub(super) fn defaults() -> Self {
        static DEFAULTS: OnceLock<Options> = OnceLock::new();
        *DEFAULTS.get_or_init(|| Self::from_folder(Path::new("/etc/rdma/rsocket")))
    }

    /// Reads the defaults from the files in a folder. Missing and invalid files have no effect.
    fn from_folder(folder: &Path) -> Self {
        let setting = |name: &str, default: u32, bounds: (u32, u32)| {
            let text = std::fs::read_to_string(folder.join(name)).ok();
            let value = text.and_then(|text| text.trim().parse().ok()).unwrap_or(default);
            value.clamp(bounds.0, bounds.1)
        };
        Self {
            send_buffer: setting("wmem_default", 1 << 17, BUFFER),
            receive_buffer: setting("mem_default", 1 << 17, BUFFER),
            send_queue: setting("sqsize_default", 384, QUEUE),
            receive_queue: setting("rqsize_default", 384, QUEUE),
            inline: setting("inline_default", 64, INLINE),
            mappings: setting("iomap_size", 0, MAPPINGS),
            linger: None,
        }
    }

    /// A numeric option and its minimum and maximum. `None` if there is no such option.
    fn number(&mut self, level: c_int, name: c_int) -> Option<(&mut u32, (u32, u32))> {
        Some(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => (&mut self.send_buffer, BUFFER),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => (&mut self.receive_buffer, BUFFER),
            (SOL_RDMA, RDMA_SQSIZE) => (&mut self.send_queue, QUEUE),
            (SOL_RDMA, RDMA_RQSIZE) => (&mut self.receive_queue, QUEUE),
            (SOL_RDMA, RDMA_INLINE) => (&mut self.inline, INLINE),
            (SOL_RDMA, RDMA_IOMAPSIZE) => (&mut self.mappings, MAPPINGS),
            _ => return None,
        })
    }

    /// Sets a numeric option, clamped to its bounds. Returns `None` if there is no such option. EINVAL if the value is
    /// negative.
    pub(super) fn set(&mut self, level: c_int, name: c_int, value: c_int) -> Option<Result<(), Errno>> {
        let (option, (min, max)) = self.number(level, name)?;
        let Ok(value) = u32::try_from(value) else { return Some(Err(Errno::INVALID)) };
        *option = value.clamp(min, max);
        Some(Ok(()))
    }

    /// The value of a numeric option. `None` if there is no such option.
    pub(super) fn get(&mut self, level: c_int, name: c_int) -> Option<c_int> {
        self.number(level, name).map(|(option, _)| (*option).cast_signed())
    }
}

/// Returns whether an option is stored only in the kernel's socket behind the descriptor, where the program can read it
/// back. Such an option has no effect on the connection.
pub(super) fn is_stored_in_kernel(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_KEEPALIVE
                | libc::SO_OOBINLINE
                | libc::SO_REUSEADDR
                | libc::SO_TYPE
                | libc::SO_DOMAIN
                | libc::SO_PROTOCOL
        ),
        libc::IPPROTO_TCP => matches!(
            name,
            libc::TCP_NODELAY
                | libc::TCP_MAXSEG
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT
        ),
        libc::IPPROTO_IPV6 => name == libc::IPV6_V6ONLY,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_administrator_may_change_defaults_within_bounds() {
        let folder = std::env::temp_dir().join(format!("rsocket-defaults-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("mem_default"), "1000000\n").unwrap();
        std::fs::write(folder.join("rqsize_default"), "1").unwrap();
        std::fs::write(folder.join("wmem_default"), "a lot").unwrap();
        let options = Options::from_folder(&folder);
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(options.receive_buffer, 1_000_000);
        assert_eq!(options.receive_queue, 2 * RESERVE);
        assert_eq!(options.send_buffer, 1 << 17);
    }

    #[test]
    fn numbers_are_set_within_bounds_and_read_back() {
        let mut options = Options::defaults();
        assert_eq!(options.set(libc::SOL_SOCKET, libc::SO_RCVBUF, 1 << 19), Some(Ok(())));
        assert_eq!(options.get(libc::SOL_SOCKET, libc::SO_RCVBUF), Some(1 << 19));
        assert_eq!(options.set(SOL_RDMA, RDMA_INLINE, 1 << 20), Some(Ok(())));
        assert_eq!(options.get(SOL_RDMA, RDMA_INLINE), Some(4096));
        assert_eq!(options.set(SOL_RDMA, RDMA_SQSIZE, -1), Some(Err(Errno::INVALID)));
        assert_eq!(options.set(libc::SOL_SOCKET, libc::SO_BROADCAST, 1), None);
    }
}
