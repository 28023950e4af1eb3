//! The runtime directory, with one file for each process.
//!
//! It is in a directory that others may write to, such as /tmp. So it must belong to its user and nobody else may enter it,
//! symbolic links are not followed, and everything inside is named relative to its descriptor.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum number of files in a directory. Files of dead processes are removed long before, unless it cannot be found out
/// whether their processes are dead.
const MAX_FILES: usize = 256;
/// How the name of a file ends.
const SUFFIX: &str = ".events";

/// Where the directory of a user may be, in the order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    parent: PathBuf,
    name: String,
    user: u32,
    /// The parent must belong to the user as well.
    private: bool,
}

impl Place {
    fn private(parent: impl Into<PathBuf>, user: u32) -> Self {
        Self { parent: parent.into(), name: "ironwarp".to_owned(), user, private: true }
    }

    /// Returns the places of a user, whose runtime directory is `runtime`, if it has one. Memory comes before /tmp, where
    /// every write might have to wait for a disk.
    pub(crate) fn of(user: u32, runtime: Option<&OsStr>) -> Vec<Self> {
        let runtime = runtime.map(Path::new).filter(|path| path.is_absolute());
        let shared = ["/dev/shm", "/tmp"].map(|parent| Self {
            parent: parent.into(),
            name: format!("ironwarp-{user}"),
            user,
            private: false,
        });
        runtime.map(|path| Self::private(path, user)).into_iter().chain(shared).collect()
    }

    /// Returns the places of this process. The environment of a program that runs with more privileges than its caller is
    /// ignored.
    pub(crate) fn of_this_process() -> Vec<Self> {
        let user = rustix::process::geteuid();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| user == rustix::process::getuid());
        Self::of(user.as_raw(), runtime.as_deref())
    }

    /// Returns the places in which to look for files: of this user, with the runtime directory that logins get, and, for
    /// root, of all users.
    pub(crate) fn to_search() -> Vec<Self> {
        let mut places = Self::of_this_process();
        let own = rustix::process::geteuid().as_raw();
        let mut users = vec![own];
        if own == 0 {
            users.extend(users_in("/run/user", ""));
            users.extend(["/dev/shm", "/tmp"].iter().flat_map(|parent| users_in(parent, "ironwarp-")));
            users.sort_unstable();
            users.dedup();
        }
        for user in users {
            let login = format!("/run/user/{user}");
            places.extend(Self::of(user, Some(OsStr::new(&login))));
        }
        let mut unique: Vec<Self> = Vec::new();
        for place in places {
            if !unique.contains(&place) {
                unique.push(place);
            }
        }
        unique
    }

    /// Opens the directory, and creates it before, if `create` is set.
    pub(crate) fn open(&self, create: bool) -> io::Result<Directory> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = rustix::fs::open(&self.parent, flags | OFlags::PATH, Mode::empty())?;
        if self.private && rustix::fs::fstat(&parent)?.st_uid != self.user {
            return Err(self.untrusted("its parent belongs to another user"));
        }
        if create {
            match rustix::fs::mkdirat(&parent, &self.name, Mode::RWXU) {
                Err(error) if error != Errno::EXIST => return Err(error.into()),
                _ => {}
            }
        }
        let fd = rustix::fs::openat(&parent, &self.name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_uid != self.user {
            return Err(self.untrusted("it belongs to another user"));
        }
        if Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
            return Err(self.untrusted("other users may enter it"));
        }
        Ok(Directory { fd, user: self.user, path: self.parent.join(&self.name) })
    }

    fn untrusted(&self, why: &str) -> io::Error {
        let path = self.parent.join(&self.name);
        io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {why}", path.display()))
    }
}

/// Returns the users who own the entry of a directory whose name is `prefix` and their number. Entries of other owners do
/// not count towards the limit: anyone may create them.
fn users_in(directory: &str, prefix: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let user = |entry: std::fs::DirEntry| {
        let user = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
        let is_own = entry.file_name() == *format!("{prefix}{user}") && entry.metadata().ok()?.uid() == user;
        is_own.then_some(user)
    };
    entries.filter_map(user).take(MAX_FILES).collect()
}

/// An open runtime directory.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    /// The owner, and the only user who can write to it, apart from root.
    pub(crate) user: u32,
    path: PathBuf,
}

impl Directory {
    /// Creates a file for a process. Returns it with its path.
    pub(crate) fn create(&self, process: u32) -> io::Result<(OwnedFd, PathBuf)> {
        if self.names()?.len() >= MAX_FILES {
            let why = format!("{}: {MAX_FILES} files, remove some", self.path.display());
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{process}-{:08x}{SUFFIX}", u32::from_le_bytes(random));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.fd, &name, flags, Mode::RUSR | Mode::WUSR)?;
        Ok((file, self.path.join(name)))
    }

    /// Returns the names of the files of processes.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let name = entry?.file_name().to_str().map(str::to_owned);
            names.extend(name.ok().filter(|name| process_of(name).is_some()));
            if names.len() >= MAX_FILES {
                break;
            }
        }
        Ok(names)
    }

    /// Opens a file for reading. Fails unless it is a regular file of the user whose directory this is, and `len` bytes
    /// long. Never waits, whatever the file is.
    pub(crate) fn open_file(&self, name: &str, len: usize) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let is_ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == self.user
            && u64::try_from(stat.st_size) == Ok(len as u64);
        if is_ours { Ok(file) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Returns how long ago a file was created, or its length changed, in seconds.
    pub(crate) fn age(&self, name: &str) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let now = crate::clock::nanoseconds() / 1_000_000_000;
        Ok(now.saturating_sub(u64::try_from(stat.st_mtime).unwrap_or_default()))
    }
}

/// Returns the process in the name of a file; `None` for other files.
pub(crate) fn process_of(name: &str) -> Option<u32> {
    let (process, random) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let is_random = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    process.parse().ok().filter(|_| is_random)
}

/// Reads up to `bytes.len()` bytes from an offset on. Returns their number.
pub(crate) fn read_at(file: impl AsFd, bytes: &mut [u8], offset: usize) -> io::Result<usize> {
    let mut len = 0;
    while len < bytes.len() {
        let read =
            rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut bytes[len..], (offset + len) as u64))?;
        if read == 0 {
            break;
        }
        len += read;
    }
    Ok(len)
}

/// Removes the file at this path, in a directory that [`Place::open`] returned.
pub(crate) fn remove_path(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty())?;
    Ok(rustix::fs::unlinkat(parent, name.as_bytes(), AtFlags::empty())?)
}

#[cfg(test)]
mod tests;
