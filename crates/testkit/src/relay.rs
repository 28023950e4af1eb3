//! Relays between TCP connections.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::thread;

/// Forwards everything between two connections, in both directions, in threads of their own, until both are closed.
pub fn forward(one: &TcpStream, other: &TcpStream) -> io::Result<()> {
    for (from, to) in [(one, other), (other, one)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        to.set_nodelay(true)?;
        thread::spawn(move || {
            // A connection that is reset ends the other one, too.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
