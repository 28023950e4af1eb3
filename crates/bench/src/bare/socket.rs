//! TCP sockets with the options of a turn, and blocking calls on them.

use crate::result::Result;
use crate::turn::Turn;
use rustix::net::sockopt::set_tcp_congestion;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Connects to the server.
pub(super) fn connect(turn: &Turn, to: SocketAddr) -> Result<TcpStream> {
    set_options(turn, TcpStream::connect(to)?)
}

/// Accepts a client.
pub(super) fn accept(turn: &Turn, listener: &TcpListener) -> Result<TcpStream> {
    set_options(turn, listener.accept()?.0)
}

/// Sets the options of a connection.
fn set_options(turn: &Turn, stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    if turn.reno {
        set_tcp_congestion(&stream, "reno")?;
    }
    Ok(stream)
}

/// Fills the buffer, polling a non-blocking socket. Returns false if the peer has closed.
pub(super) fn read_all(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<bool> {
    let mut got = 0;
    while got < buffer.len() {
        match stream.read(&mut buffer[got..]) {
            Ok(0) => return Ok(false),
            Ok(n) => got += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Writes all bytes, polling a non-blocking socket.
pub(super) fn write_all(stream: &mut TcpStream, buffer: &[u8]) -> Result {
    let mut sent = 0;
    while sent < buffer.len() {
        match stream.write(&buffer[sent..]) {
            Ok(n) => sent += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
