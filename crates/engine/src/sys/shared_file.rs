//! `SharedFile`, a packet capture file to which several processes append, each record with one write(2), up to a
//! maximum size. A process that is killed loses no record that it has appended.
//!
//! A capture contains the data that programs sent, so only its owner may read it. The file may be in a directory that
//! other users can write to. So only a regular file of this user is opened, not through a symbolic link, and not if it
//! has a second hard link. Another process can lock the file, but does not delay a program that opens an adapter for
//! more than half a second.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fchmod, flock, fstat, ftruncate};
use rustix::io::{Errno, retry_on_intr};
use std::fs::File;
use std::io::{self, Error, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for the lock of a process that writes the header, which takes microseconds.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
/// Interval between attempts to take the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);

/// An open capture file.
#[derive(Debug)]
pub(crate) struct SharedFile {
    file: File,
    /// Maximum size of the file in bytes.
    limit: u64,
}

/// Creates an empty capture file, or empties an existing one.
pub fn create_empty(path: &Path) -> io::Result<()> {
    let file = open_private(path)?;
    fchmod(&file, Mode::RUSR | Mode::WUSR)?; // it may exist with wider permissions
    Ok(ftruncate(&file, 0)?)
}

/// Opens a file of this user for appending, or creates one that only this user can read and write. Refuses links, files
/// of other users, and anything but regular files.
fn open_private(path: &Path) -> io::Result<File> {
    // NONBLOCK: without it, opening a FIFO would wait for its other end.
    let flags = OFlags::RDWR
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::NOFOLLOW
        | OFlags::CLOEXEC
        | OFlags::NONBLOCK;
    let refused = |why| Error::new(ErrorKind::PermissionDenied, why);
    let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        Err(Errno::LOOP) => return Err(refused("it is a symbolic link: name the file itself")),
        Err(error) => return Err(error.into()),
    };
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("it is not a regular file"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refused("it belongs to another user: remove it or choose another name"));
    }
    if stat.st_nlink != 1 {
        return Err(refused("it has another name, too: remove it or choose another name"));
    }
    Ok(file.into())
}

/// Waits for the lock of a file (flock(2)) and takes it. Unlocking or closing the file releases the lock. Fails after
/// [`LOCK_TIMEOUT`], because any process that can open the file can lock it forever.
fn lock(file: &File) -> io::Result<()> {
    let began = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            // Polled, because waiting in the kernel has no timeout.
            Err(Errno::WOULDBLOCK) if began.elapsed() < LOCK_TIMEOUT => thread::sleep(LOCK_INTERVAL),
            Err(Errno::WOULDBLOCK) => {
                let why = "another process keeps it locked: remove it or choose another name";
                return Err(Error::new(ErrorKind::WouldBlock, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether the file begins with `header`; false if the file is empty. Fails if the file begins with anything
/// else.
fn has_header(file: &File, header: &[u8]) -> io::Result<bool> {
    let mut begin = vec![0; header.len()];
    match file.read_exact_at(&mut begin, 0) {
        Ok(()) if begin == header => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && fstat(file)?.st_size == 0 => Ok(false),
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(error),
        _ => Err(Error::new(ErrorKind::InvalidData, "it is there, and is something else")),
    }
}

impl SharedFile {
    /// Opens a file that begins with `header`, for appending up to a size of `limit` bytes. Writes the header to a new
    /// or an empty file.
    pub(crate) fn open(path: &Path, header: &[u8], limit: u64) -> io::Result<Self> {
        let mut file = open_private(path)?;
        if !matches!(has_header(&file, header), Ok(true)) {
            // Under the lock the file is checked again: of several processes that find it empty, or find what another is
            // just writing, only the first writes the header. If an error is returned below, closing the file releases
            // the lock.
            lock(&file)?;
            if !has_header(&file, header)? {
                file.write_all(header)?;
            }
            flock(&file, FlockOperation::Unlock)?;
        }
        Ok(Self { file, limit })
    }

    /// Appends bytes. Fails, and appends nothing, if the file would exceed the limit.
    pub(crate) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let len = u64::try_from(rustix::fs::fstat(&self.file)?.st_size).unwrap_or(u64::MAX);
        if len.saturating_add(bytes.len() as u64) > self.limit {
            let why = format!("the file has {len} bytes, the limit is {} (IRONWARP_PCAP_LIMIT)", self.limit);
            return Err(Error::new(ErrorKind::FileTooLarge, why));
        }
        // rustix makes the system call by number: the C library's write is a cancellation point, where a thread must
        // not end (`sys/mod.rs`).
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

#[cfg(test)]
mod tests {
    use super::*;
    use ironwarp_testkit::child::as_root;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    const HEADER: &[u8] = b"a header";

    /// Creates an empty directory for one test, and returns the path of a file in it.
    fn path(test: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("ironwarp-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        directory.join("capture")
    }

    fn open(path: &Path) -> io::Result<SharedFile> {
        SharedFile::open(path, HEADER, 1000)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn remove(path: &Path) {
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_capture_is_its_owners_alone() {
        let path = path("mode");
        let file = open(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        file.append(b" and more").unwrap();
        open(&path).unwrap().append(b" and more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a header and more and more");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        create_empty(&path).unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap().len()), (0o600, 0));
        remove(&path);
    }

    #[test]
    fn links_and_what_is_no_file_of_ours_are_refused() {
        if !as_root("sys::shared_file::tests::links_and_what_is_no_file_of_ours_are_refused") {
            return;
        }
        let path = path("refused");
        let other = path.with_file_name("other");
        let refused = |what: &str| {
            for error in [open(&path).unwrap_err(), create_empty(&path).unwrap_err()] {
                assert!(error.to_string().contains(what), "{error}");
            }
            fs::remove_file(&path).unwrap();
        };
        fs::write(&other, b"").unwrap();
        symlink(&other, &path).unwrap();
        refused("symbolic link");
        symlink("/nowhere/at/all", &path).unwrap();
        refused("symbolic link");
        fs::hard_link(&other, &path).unwrap();
        refused("another name");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused("not a regular file");
        fs::write(&path, b"").unwrap();
        chown(&path, Some(65534), None).unwrap();
        refused("another user");
        fs::write(&path, b"something else").unwrap();
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(fs::read(&other).unwrap(), b"", "nothing was written through a link");
        remove(&path);
    }

    /// A reader may lock the file forever. That does not delay processes that find the header, and others only until
    /// the timeout.
    #[test]
    fn a_lock_does_not_keep_an_adapter_from_opening() {
        let path = path("locked");
        drop(open(&path).unwrap());
        let reader = File::open(&path).unwrap();
        flock(&reader, FlockOperation::LockExclusive).unwrap();
        open(&path).unwrap().append(b"!").unwrap();
        create_empty(&path).unwrap();
        let error = open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        drop(reader);
        open(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), HEADER);
        remove(&path);
    }

    #[test]
    fn of_many_who_find_it_empty_one_writes_the_header() {
        let path = path("many");
        thread::scope(|scope| {
            (0..16).for_each(|_| drop(scope.spawn(|| open(&path).unwrap().append(b"!").unwrap())));
        });
        assert_eq!(fs::read(&path).unwrap(), [HEADER, &[b'!'; 16]].concat());
        remove(&path);
    }
}
