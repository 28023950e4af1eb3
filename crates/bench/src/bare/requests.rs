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

/// Number of events per call.
const EVENTS: usize = 64;

#[derive(Debug)]
struct Many {
    epoll: OwnedFd,
    streams: Vec<TcpStream>,
}

impl Many {
    fn new(streams: Vec<TcpStream>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(&epoll, stream, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        }
        Ok(Self { epoll, streams })
    }

    /// Sleeps until some are readable.
    fn ready(&self, events: &mut Vec<epoll::Event>) -> Result {
        events.clear();
        epoll::wait(&self.epoll, spare_capacity(events), None)?;
        Ok(())
    }
}

fn which(event: &epoll::Event) -> Result<usize> {
    let epoll::Event { data, .. } = *event;
    Ok(usize::try_from(data.u64())?)
}

pub(super) fn run(turn: &Turn, server: &mut Server, at: SocketAddr) -> Result<Measured> {
    let streams: Result<Vec<_>> = (0..turn.connections).map(|_| connect(turn, at)).collect();
    let mut many = Many::new(streams?)?;
    let request = pattern(turn.size);
    exchange(turn, &mut many, &request, turn.warm_up())?;
    let watch = Stopwatch::start(server)?;
    let messages = exchange(turn, &mut many, &request, turn.time())?;
    let measured = watch.stop(server, messages, turn.size)?;
    drop(many);
    compare(&server.holds()?, &request)?;
    Ok(measured)
}

fn exchange(turn: &Turn, many: &mut Many, request: &[u8], time: Duration) -> Result<u64> {
    let start = Instant::now();
    let mut order = Scattered::new(many.streams.len());
    let (mut outstanding, mut done) = (0, 0);
    for _ in 0..turn.queued.min(many.streams.len()) {
        write_all(&mut many.streams[order.next()], request)?;
        outstanding += 1;
    }
    let (mut events, mut answer) = (Vec::with_capacity(EVENTS), vec![0; request.len()]);
    while outstanding > 0 {
        many.ready(&mut events)?;
        for event in &events {
            if !read_all(&mut many.streams[which(event)?], &mut answer)? {
                return Err("the server has closed the connection".into());
            }
            order.done(which(event)?);
            (outstanding, done) = (outstanding - 1, done + 1);
            if start.elapsed() < time {
                write_all(&mut many.streams[order.next()], request)?;
                outstanding += 1;
            }
        }
    }
    Ok(done)
}

pub(super) fn serve(turn: &Turn, listener: &TcpListener) -> Result {
    let streams: Result<Vec<_>> = (0..turn.connections).map(|_| accept(turn, listener)).collect();
    let mut many = Many::new(streams?)?;
    let (mut events, mut request) = (Vec::with_capacity(EVENTS), vec![0; turn.size]);
    let mut open = turn.connections;
    while open > 0 {
        many.ready(&mut events)?;
        for event in &events {
            let stream = &mut many.streams[which(event)?];
            // Edge-triggered: read until nothing is left. A request arrives as a whole.
            loop {
                match stream.read(&mut request) {
                    Ok(0) => {
                        // Otherwise it would be reported again.
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
    control::wait_until_asked()?;
    control::say_holds(&edges(&request));
    Ok(())
}
