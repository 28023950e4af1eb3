//! Requests and answers on many connections, with edge-triggered epoll, like a typical socket server.

use super::socket::{accept, connect, read_all, write_all};
use crate::control::{self, Server};
use crate::measure::{Measured, Stopwatch, compare, edges, pattern};
use crate::result::Result;
use crate::scattered::Scattered;
use crate::turn::Turn;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum number of events per call.
const MAX_EVENTS: usize = 64;

/// Non-blocking connections, and an epoll of all of them.
#[derive(Debug)]
struct Connections {
    epoll: OwnedFd,
    streams: Vec<TcpStream>,
}

impl Connections {
    /// Adds all connections to an epoll, each with its index.
    fn new(streams: Vec<TcpStream>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, stream, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        }
        Ok(Self { epoll, streams })
    }

    /// Sleeps until connections are readable, and replaces `events` with their events.
    fn wait_readable(&self, events: &mut Vec<epoll::Event>) -> Result {
        events.clear();
        epoll::wait(&self.epoll, spare_capacity(events), None)?;
        Ok(())
    }
}

/// Returns the index of the connection of an event.
fn connection_index(event: &epoll::Event) -> Result<usize> {
    let epoll::Event { data, .. } = *event;
    Ok(usize::try_from(data.u64())?)
}

/// Runs the client.
pub(super) fn run(turn: &Turn, server: &mut Server, at: SocketAddr) -> Result<Measured> {
    let streams: Result<Vec<_>> = (0..turn.connections).map(|_| connect(turn, at)).collect();
    let mut many = Connections::new(streams?)?;
    let request = pattern(turn.size);
    exchange(turn, &mut many, &request, turn.warm_up())?;
    let watch = Stopwatch::start(server)?;
    let messages = exchange(turn, &mut many, &request, turn.time())?;
    let measured = watch.stop(server, messages, turn.size)?;
    drop(many);
    compare(&server.received_edges()?, &request)?;
    Ok(measured)
}

/// Sends requests for the given time, on connections that do not wait for an answer, and receives all answers. Returns
/// their number.
fn exchange(turn: &Turn, many: &mut Connections, request: &[u8], time: Duration) -> Result<u64> {
    let start = Instant::now();
    let mut order = Scattered::new(many.streams.len());
    let (mut outstanding, mut done) = (0, 0);
    for _ in 0..turn.queued.min(many.streams.len()) {
        write_all(&mut many.streams[order.next()], request)?;
        outstanding += 1;
    }
    let (mut events, mut answer) = (Vec::with_capacity(MAX_EVENTS), vec![0; request.len()]);
    while outstanding > 0 {
        many.wait_readable(&mut events)?;
        for event in &events {
            if !read_all(&mut many.streams[connection_index(event)?], &mut answer)? {
                return Err("the server has closed the connection".into());
            }
            order.mark_answered(connection_index(event)?);
            (outstanding, done) = (outstanding - 1, done + 1);
            if start.elapsed() < time {
                write_all(&mut many.streams[order.next()], request)?;
                outstanding += 1;
            }
        }
    }
    Ok(done)
}

/// Runs the server.
pub(super) fn serve(turn: &Turn, listener: &TcpListener) -> Result {
    let streams: Result<Vec<_>> = (0..turn.connections).map(|_| accept(turn, listener)).collect();
    let mut many = Connections::new(streams?)?;
    let (mut events, mut request) = (Vec::with_capacity(MAX_EVENTS), vec![0; turn.size]);
    let mut open = turn.connections;
    while open > 0 {
        many.wait_readable(&mut events)?;
        for event in &events {
            let stream = &mut many.streams[connection_index(event)?];
            // Edge-triggered: read until nothing is left. A request arrives as a whole.
            loop {
                match stream.read(&mut request) {
                    Ok(0) => {
                        // A closed connection would be reported again.
                        epoll::delete(&many.epoll, &*stream)?;
                        open -= 1;
                        break;
                    }
                    Ok(_) => write_all(stream, &request)?,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    control::wait_for_query()?;
    control::print_received(&edges(&request));
    Ok(())
}
