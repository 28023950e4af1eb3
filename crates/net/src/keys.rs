//! Key files, which only their owner can access, random numbers, and MAC addresses in text.
//!
//! The unit's file has one line for each host: name, MAC addresses with commas between, and key, separated by spaces. `auto`
//! stands for the address that a host without `--mac` uses. Empty lines and those that start with `#` are ignored. The
//! file of a host is one line with its key.

use ironwarp_engine::config::read_private_file;
use ironwarp_io_unit::auth::{Key, Registry};
use ironwarp_io_unit::message::{HostName, Mac, Nonce};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::path::Path;

/// Maximum length of a key file.
const MAX_FILE: u64 = 1 << 20;

/// Reads the key of a host.
pub(crate) fn host(path: &Path) -> io::Result<Key> {
    let key = |text: &str| Key::new(text.trim_end().as_bytes()).map_err(|error| error.to_string());
    read(path).and_then(|text| key(&text).map_err(invalid)).map_err(in_file(path))
}

/// Reads the keys of all hosts of a unit.
pub(crate) fn unit(path: &Path) -> io::Result<Registry> {
    read(path).and_then(|text| parse(&text).map_err(invalid)).map_err(in_file(path))
}

/// Returns a random number for one connection.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; 16];
    // Up to 256 bytes are never returned in part (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(Nonce(bytes))
}

/// Returns the MAC address of a host that does not choose one: locally administered, and derived from its name.
pub(crate) fn default_mac(name: &HostName) -> Mac {
    // FNV-1a. The unit refuses a file in which two hosts have the same address.
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let [a, b, c, d, e, ..] = (hash ^ hash >> 40).to_le_bytes();
    Mac([2, a, b, c, d, e])
}

/// Parses a MAC address such as 02:00:00:00:00:01.
pub(crate) fn parse_mac(text: &str) -> Result<Mac, String> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() == 2 && !part.starts_with('+')))
        .collect();
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    bytes
        .map(Mac)
        .ok_or_else(|| format!("invalid MAC address `{text}`: expected six bytes as in 02:00:00:00:00:01"))
}

fn parse(text: &str) -> Result<Registry, String> {
    let mut registry = Registry::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        // The error must not show the line: it has a key.
        let in_line = |error: String| format!("line {number}: {error}");
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [name, macs, key] => add(&mut registry, name, macs, key).map_err(in_line)?,
            _ => return Err(in_line("expected a name, MAC addresses and a key".to_owned())),
        }
    }
    Ok(registry)
}

fn add(registry: &mut Registry, name: &str, macs: &str, key: &str) -> Result<(), String> {
    let name = HostName::new(name).map_err(|error| error.to_string())?;
    let mac = |text: &str| if text == "auto" { Ok(default_mac(&name)) } else { parse_mac(text) };
    let macs = macs.split(',').map(mac).collect::<Result<Vec<_>, _>>()?;
    let key = Key::new(key.as_bytes()).map_err(|error| error.to_string())?;
    registry.add(name, key, macs).map_err(|error| error.to_string())
}

/// Reads a key file.
fn read(path: &Path) -> io::Result<String> {
    let bytes = read_private_file(path, MAX_FILE)?;
    String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8"))
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

fn in_file(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| {
        io::Error::new(error.kind(), format!("failed to use the key file `{}`: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    #[test]
    fn every_line_of_a_key_file_is_checked() {
        let good = format!("# hosts\n\nleft 02:00:00:00:00:01,02:00:00:00:00:02 {KEY}\nright auto {KEY}\n");
        assert!(parse(&good).is_ok());
        for (line, why) in [
            (format!("left {KEY}"), "line 1: expected a name"),
            (format!("le/ft auto {KEY}"), "invalid host name"),
            (format!("left 02:00:00:00:00 {KEY}"), "invalid MAC address `02:00:00:00:00`"),
            (format!("left 02:00:00:00:00:+1 {KEY}"), "invalid MAC address"),
            (format!("left 01:00:00:00:00:01 {KEY}"), "group address"),
            ("left auto short".to_owned(), "too short"),
            (format!("a auto {KEY}\na auto {KEY}"), "line 2: host a has a key already"),
            (
                format!("a 02:00:00:00:00:01 {KEY}\nb 02:00:00:00:00:01 {KEY}"),
                "line 2: MAC address 02:00:00:00:00:01",
            ),
        ] {
            let error = parse(&line).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
            assert!(!error.contains(KEY), "the error shows a key");
        }
    }

    #[test]
    fn a_key_file_is_private() {
        use std::fs::{self, Permissions};
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("ironwarp-net-key-{}", std::process::id()));
        fs::write(&path, KEY).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let error = host(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert!(host(&path).is_ok());
        fs::remove_file(&path).unwrap();
        let error = host(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
