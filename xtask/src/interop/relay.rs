//! A relay between a client and its server, for programs that would otherwise hit limits of QEMU or of their
//! own.
//!
//! QEMU queues at most two connections at a port that is forwarded to the guest; the kernel drops more, and
//! retries after seconds. The relay accepts all of them, and lets one wait at a time.
//!
//! perftest connects twice. The second time, its client does not wait until its server listens again, and
//! mishandles the refusal: it continues to use IDs that it destroyed (`rdma_cm_client_connection`). With one
//! end emulated, this race would often fail the test.

use crate::shell::Result;
use ironwarp_testkit::net::has_backlog;
use ironwarp_testkit::relay::forward;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Interval between two checks for connections.
const LOOK: Duration = Duration::from_millis(2);

/// A port of the host that is forwarded to another one.
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

    /// Relays while `work` runs. Calls `listens` before each connection, to wait until the server listens.
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
                    while has_backlog(std::process::id(), self.to) {
                        thread::sleep(LOOK);
                    }
                    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.to)).map_err(failed)?;
                    forward(&client, &server).map_err(failed)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

fn failed(error: io::Error) -> String {
    format!("relay: {error}")
}
