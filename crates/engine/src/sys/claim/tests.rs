//! Conflicts between claims of one process, and with those of other processes.

use super::*;
use ironwarp_wire::private::PortSpace;

fn port(number: u16) -> RdmaPort {
    RdmaPort { space: PortSpace::Stream, number }
}

/// Returns a port number that no other test uses while this one runs. Its TCP port stays bound.
fn number() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let number = socket.local_addr().unwrap().port();
    std::mem::forget(socket);
    number
}

fn claim(number: u16, ip: &str, one_family: bool, share: bool) -> Result<Claim, Option<i32>> {
    let at: SocketAddr = format!("{ip}:{number}").parse().unwrap();
    Claim::new(port(number), at, one_family, share).map_err(|error| error.raw_os_error())
}

const IN_USE: Option<i32> = Some(libc::EADDRINUSE);
const NOT_AVAILABLE: Option<i32> = Some(libc::EADDRNOTAVAIL);

/// The rules in the header of `claim.rs`. Each row has the address and the `one_family` flag of the first and of the
/// second claim, and the error of the second.
#[test]
fn conflicts_are_the_kernels() {
    for (first, second, error) in [
        (("10.0.0.1", true), ("10.0.0.1", true), Some(IN_USE)),
        (("10.0.0.1", true), ("10.0.0.2", true), None),
        (("0.0.0.0", true), ("10.0.0.1", true), Some(NOT_AVAILABLE)),
        (("10.0.0.1", true), ("0.0.0.0", true), Some(NOT_AVAILABLE)),
        (("0.0.0.0", true), ("0.0.0.0", true), Some(NOT_AVAILABLE)),
        (("0.0.0.0", true), ("[::]", true), None),
        (("0.0.0.0", true), ("[::]", false), Some(NOT_AVAILABLE)),
        (("[::]", false), ("10.0.0.1", true), Some(NOT_AVAILABLE)),
        (("[::1]", true), ("10.0.0.1", true), None),
        (("[fe80::1%1]", true), ("[fe80::1%2]", true), None),
        (("[fe80::1%1]", true), ("[fe80::1%1]", true), Some(IN_USE)),
    ] {
        let number = number();
        let held = claim(number, first.0, first.1, false).unwrap();
        assert_eq!(claim(number, second.0, second.1, false).err(), error, "{second:?} after {first:?}");
        drop(held);
        claim(number, second.0, second.1, false).unwrap();
    }
}

/// Two claims share a port until one of them listens. A claim that does not share conflicts with one that does.
#[test]
fn shared_ports() {
    let number = number();
    let (one, other) =
        (claim(number, "10.0.0.1", true, true).unwrap(), claim(number, "10.0.0.1", true, true).unwrap());
    assert_eq!(claim(number, "10.0.0.1", true, false).unwrap_err(), IN_USE);
    assert_eq!(one.listen().unwrap_err().raw_os_error(), IN_USE);
    let listens = other.listen().unwrap(); // alone now
    assert_eq!(claim(number, "10.0.0.1", true, true).unwrap_err(), IN_USE);
    drop(listens);
    let _alone = claim(number, "10.0.0.1", true, false).unwrap();
    assert_eq!(claim(number, "10.0.0.1", true, true).unwrap_err(), IN_USE);
}

#[test]
fn spaces_are_apart() {
    let number = number();
    let at = SocketAddr::from(([10, 0, 0, 1], number));
    let _stream = Claim::new(port(number), at, true, false).unwrap();
    Claim::new(RdmaPort { space: PortSpace::Datagram, number }, at, true, false).unwrap();
}

/// Another process has claimed the port. Killing the process frees the port.
#[test]
fn ports_of_other_processes() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    let number = number();
    let script = format!(
        "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('\\0ironwarp/rdma/1/{number}/10.0.0.1'); print(1, flush=True); time.sleep(600)"
    );
    let mut other = Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    other.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert_eq!(claim(number, "10.0.0.1", true, false).unwrap_err(), IN_USE);
    assert_eq!(claim(number, "0.0.0.0", true, false).unwrap_err(), NOT_AVAILABLE);
    other.kill().unwrap();
    other.wait().unwrap();
    claim(number, "0.0.0.0", true, false).unwrap();
}

/// Any process can bind any name, so names that are not claims are ignored.
#[test]
fn names_that_are_none() {
    for name in ["", "+", "#", "10.0.0.1.1", "10.0.0.1%1", "::%", "::%x", "::%99999999999", "\u{fffd}"] {
        assert_eq!(Scope::parse(name), None, "{name}");
    }
    let names = b"ffff: 00000002 00000000 00000000 0001 01 123 @ironwarp/rdma/1/5/::1\n\xff\xfe @ironwarp/rdma/1/5/::2\n@\n\n";
    assert_eq!(names_with_prefix(names, "ironwarp/rdma/1/5/").collect::<Vec<_>>(), ["ironwarp/rdma/1/5/::1"]);
    for name in ["0.0.0.0", "::+", "fe80::1%7", "10.0.0.1#12.0", "fe80::1%7+#1.2"] {
        let scope = Scope::parse(name).unwrap();
        assert_eq!(scope.name().split('#').next(), name.split('#').next());
    }
}
