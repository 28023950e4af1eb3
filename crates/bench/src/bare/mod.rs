//! Bare TCP: plain sockets, no framing. What the kernel can do, and so what the others are measured against.
//!
//! `pingpong.rs`, `stream.rs` and `requests.rs` hold the loops; this file makes the sockets they use.

mod pingpong;
mod requests;
mod stream;

use crate::Result;
use crate::control::{self, Server};
use crate::measure::Measured;
use crate::turn::{Turn, What};
use rustix::net::sockopt::set_tcp_congestion;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

pub(crate) fn run(turn: &Turn, server: &mut Server) -> Result<Measured> {
    let at = server.address()?;
    match turn.what {
        What::PingPong => pingpong::run(turn, server, connect(turn, at)?),
        What::Watch => pingpong::run_watching(turn, server, connect(turn, at)?),
        What::Stream => stream::run(turn, server, connect(turn, at)?),
        What::Requests => requests::run(turn, server, at),
        What::Idle => Err("a bare socket has no memory in the process".into()),
        What::Priority => Err("a bare socket has no class".into()),
    }
}

pub(crate) fn serve(turn: &Turn) -> Result {
    let listener = TcpListener::bind((turn.at, 0))?;
    control::say_address(listener.local_addr()?);
    match turn.what {
        What::PingPong => pingpong::serve(turn, accept(turn, &listener)?),
        What::Watch => pingpong::serve_watching(accept(turn, &listener)?),
        What::Stream => stream::serve(turn, accept(turn, &listener)?),
        What::Requests => requests::serve(turn, &listener),
        What::Idle | What::Priority => Ok(()),
    }
}

fn connect(turn: &Turn, to: SocketAddr) -> Result<TcpStream> {
    options(turn, TcpStream::connect(to)?)
}

fn accept(turn: &Turn, listener: &TcpListener) -> Result<TcpStream> {
    options(turn, listener.accept()?.0)
}

fn options(turn: &Turn, stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true)?;
    if turn.reno {
        set_tcp_congestion(&stream, "reno")?;
    }
    Ok(stream)
}

/// All of the buffer. A socket that does not block is asked again and again. False if the peer has closed.
fn read_all(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<bool> {
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

fn write_all(stream: &mut TcpStream, buffer: &[u8]) -> Result {
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
