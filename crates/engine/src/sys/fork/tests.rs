use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

/// What a child of ours says in one byte, made by a function that allocates nothing.
fn in_child(say: impl FnOnce() -> u8) -> u8 {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child calls nothing that needs another thread, and ends without running what is the parent's.
    match unsafe { libc::fork() } {
        0 => {
            let said = say();
            let _ = (&writer).write_all(&[said]);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => {
            drop(writer);
            let mut said = [0];
            reader.read_exact(&mut said).unwrap();
            // SAFETY: a child of ours.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            said[0]
        }
    }
}

fn is_socket(fd: RawFd) -> u8 {
    // SAFETY: all zero is a valid value, which the call fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: our own memory.
    unsafe { libc::fstat(fd, &raw mut stat) };
    u8::from(stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

#[test]
fn a_connection_closes_although_a_child_lives() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mine = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let kept = Kept::new(mine.into(), Instead::Nothing);
    let (from_child, to_parent) = std::io::pipe().unwrap();
    let (from_parent, to_child) = std::io::pipe().unwrap();
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(to_child);
        let _ = (&to_parent).write_all(&[0]);
        let _ = (&from_parent).read(&mut [0]); // until the parent is done
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) }
    }
    (&from_child).read_exact(&mut [0]).unwrap();
    drop(kept);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the end of the stream");
    drop(to_child);
    // SAFETY: a child of ours.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

#[test]
fn what_is_not_kept_is_shared_as_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = listener.as_raw_fd();
    assert_eq!(in_child(|| is_socket(number)), 1);
    let kept = Kept::new(listener.into(), Instead::Nothing);
    assert_eq!(in_child(|| is_socket(number)), 0);
    let given_back = kept.into_inner();
    assert_eq!(in_child(|| is_socket(number)), 1);
    drop(given_back);
}

#[test]
fn a_child_does_not_take_its_parents_events() {
    let made = eventfd(3, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK).unwrap();
    let kept = Kept::new(made, Instead::Semaphore);
    let number = kept.as_raw_fd();
    let wrote = in_child(|| {
        let one = 1_u64;
        // SAFETY: our own memory.
        u8::from(unsafe { libc::write(number, (&raw const one).cast(), 8) } == 8)
    });
    assert_eq!(wrote, 1, "the child has one as well");
    let mut count = 0;
    while rustix::io::read(&kept, &mut [0; 8]).is_ok() {
        count += 1;
    }
    assert_eq!(count, 3);
}
