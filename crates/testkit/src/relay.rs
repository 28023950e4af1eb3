//! Relays between TCP connections.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::thread;

/// Starts to forward all bytes between two connections, with a thread per direction, until both connections are closed.
pub fn forward(one: &TcpStream, other: &TcpStream) -> io::Result<()> {
    for (from, to) in [(one, other), (other, one)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        to.set_nodelay(true)?;
        thread::spawn(move || {
            // If one connection is reset, the other is closed, too.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
