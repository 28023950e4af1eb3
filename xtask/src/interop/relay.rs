//! A relay between a client and its server, for programs that would meet other limits than siw's or ours.
//!
//! QEMU lets no more than two connections wait at a port that leads to the guest; the kernel drops more, and tries again after
//! seconds. The relay takes them all, and lets one wait at a time.
//!
//! perftest connects twice. For the second time its client does not wait until its server listens again, and what it does when
//! it is refused is wrong: it goes on with ids that it destroyed (`rdma_cm_client_connection`). Where one end is emulated, that
//! would decide the run.

use crate::inside::is_waited_at;
use crate::shell::Result;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often it is looked whether somebody connects, or was accepted.
const LOOK: Duration = Duration::from_millis(2);

/// A port of the host that leads to another.
#[derive(Debug)]
pub(super) struct Relay {
    listener: TcpListener,
    to: u16,
}

impl Relay {
    pub(super) fn new(to: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, to })
    }

    pub(super) fn port(&self) -> Result<u16> {
        Ok(self.listener.local_addr().map_err(failed)?.port())
    }

    /// Relays as long as `work` lasts. `listens` waits until the server does, before each connection.
    pub(super) fn during<T>(
        &self,
        listens: impl FnMut() -> Result + Send,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let relay = scope.spawn(|| self.serve(listens, &done));
            let outcome = work();
            done.store(true, Ordering::Release);
            relay.join().map_err(|_| "the relay panicked")??;
            outcome
        })
    }

    fn serve(&self, mut listens: impl FnMut() -> Result, done: &AtomicBool) -> Result {
        while !done.load(Ordering::Acquire) {
            match self.listener.accept() {
                Ok((client, _)) => {
                    client.set_nonblocking(false).map_err(failed)?;
                    listens()?;
                    while is_waited_at(std::process::id(), self.to) {
                        thread::sleep(LOOK);
                    }
                    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.to)).map_err(failed)?;
                    for (from, to) in [(&client, &server), (&server, &client)] {
                        let (from, to) = (from.try_clone().map_err(failed)?, to.try_clone().map_err(failed)?);
                        thread::spawn(move || pass(&from, &to));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// Passes on what comes, and that no more comes. A connection that is lost ends, too.
fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = to.set_nodelay(true);
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

fn failed(error: io::Error) -> String {
    format!("the relay: {error}")
}
