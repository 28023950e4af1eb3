//! A file that several processes add to, each piece at one go, up to a limit. What is added is the kernel's at once: it stays
//! when the process is killed.

use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::path::Path;

/// Such a file.
#[derive(Debug)]
pub(crate) struct SharedFile {
    file: File,
    limit: u64,
}

impl SharedFile {
    /// Opens a file that begins with `header`; one that is not there, or empty, gets it.
    pub(crate) fn open(path: &Path, header: &[u8], limit: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        // Of several that find it empty, one writes. The lock goes with this description of the file, at the latest.
        flock(&file, FlockOperation::LockExclusive)?;
        let mut begin = Vec::new();
        (&file).take(header.len() as u64).read_to_end(&mut begin)?;
        match &*begin {
            [] => file.write_all(header)?,
            begin if begin == header => {}
            _ => return Err(Error::new(ErrorKind::InvalidData, "it is there, and is something else")),
        }
        flock(&file, FlockOperation::Unlock)?;
        Ok(Self { file, limit })
    }

    /// Adds bytes.
    pub(crate) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = u64::try_from(rustix::fs::fstat(&self.file)?.st_size).unwrap_or(u64::MAX);
        if len.saturating_add(bytes.len() as u64) > self.limit {
            let why = format!("the file has {len} bytes, and may have {} (IRONWARP_PCAP_LIMIT)", self.limit);
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        // By number, as all calls of the data path: the C library's own may cancel the thread.
        let mut left = bytes;
        while !left.is_empty() {
            match retry_on_intr(|| rustix::io::write(&self.file, left))? {
                0 => return Err(ErrorKind::WriteZero.into()),
                written => left = &left[written..],
            }
        }
        Ok(())
    }
}
