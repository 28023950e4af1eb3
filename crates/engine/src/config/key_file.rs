//! The cluster key of the settings, which may be in a file, and how files with secrets are read.

use super::{ClusterKey, Config};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Maximum length of the file, which is one line.
const MAX_KEY_FILE: u64 = 4096;

impl Config {
    /// Returns the cluster key, which may be in a file; `None` if none is set.
    ///
    /// ```
    /// # use ironwarp_engine::config::{ClusterKey, Config};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::default().key(ClusterKey::new(&[0x5a; 32])?);
    /// assert!(config.cluster_key()?.is_some() && Config::default().cluster_key()?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the key file cannot be used, or both a key and a key file are set.
    pub fn cluster_key(&self) -> io::Result<Option<ClusterKey>> {
        let from_file = !self.key_file.as_os_str().is_empty();
        match (self.key.bytes(), from_file) {
            (None, false) => Ok(None),
            (Some(_), false) => Ok(Some(self.key.clone())),
            (None, true) => read_key(&self.key_file).map(Some).map_err(|error| {
                let file = self.key_file.display();
                io::Error::new(
                    error.kind(),
                    format!("failed to use the key file `{file}` (IRONWARP_KEY_FILE): {error}"),
                )
            }),
            (Some(_), true) => {
                let why = "both a key and a key file are set: unset IRONWARP_KEY or IRONWARP_KEY_FILE";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }
}

/// Reads a key file, which has one line.
fn read_key(path: &Path) -> io::Result<ClusterKey> {
    let bytes = read_private_file(path, MAX_KEY_FILE)?;
    let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let key = line.strip_suffix(b"\r").unwrap_or(line);
    ClusterKey::new(key).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// Reads a file of at most `max` bytes with secrets. It must be a regular file that only its owner can access.
pub fn read_private_file(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    // Opening a FIFO would block, and reading a device could have any effect: reads only after a check for a regular
    // file.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let about = file.metadata()?;
    let wrong = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !about.is_file() {
        return wrong("it is not a regular file");
    }
    if about.mode() & 0o077 != 0 {
        return wrong("group or others have access to it: run `chmod 600` on it");
    }
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return wrong(&format!("it is longer than {max} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

    #[test]
    fn a_key_file_is_private_and_long_enough() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("ironwarp-key-{}", std::process::id()));
        let config = Config::default().key_file(path.clone());
        let why = |config: &Config| config.cluster_key().unwrap_err().to_string();
        assert!(why(&config).contains("No such file"), "{}", why(&config));
        fs::write(&path, [KEY, b"\n"].concat()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        assert!(why(&config).contains("chmod 600"), "{}", why(&config));
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(config.cluster_key().unwrap().unwrap().bytes(), Some(KEY), "without the line break");
        let both = config.clone().key(ClusterKey::new(KEY).unwrap());
        assert!(why(&both).contains("both a key and a key file"), "{}", why(&both));
        fs::write(&path, "short").unwrap();
        assert!(why(&config).contains("key too short: 5 bytes"), "{}", why(&config));
        fs::remove_file(&path).unwrap();
        let directory = Config::default().key_file(std::env::temp_dir());
        assert!(why(&directory).contains("not a regular file"), "{}", why(&directory));
        assert!(Config::default().cluster_key().unwrap().is_none());
    }
}
