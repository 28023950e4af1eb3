//! An iSCSI target with a disk in memory, for tests of initiators.
//!
//! ```text
//!  initiator ──▶ connection ──▶ disk          each connection has a thread
//!            ◀── outbox ◀── script ◀──┘       the script may change, drop, hold, repeat and add PDUs
//! ```
//!
//! It follows RFC 7143 at error recovery level 0, with one connection for each session, and is strict: an initiator that
//! violates the protocol is disconnected, and [`Target::violations`] says why. With a [`Script`], the target lies.
//!
//! ```
//! use ironwarp_testkit::iscsi::{Sending, Settings, Target};
//! use ironwarp_wire::iscsi::TargetPdu;
//!
//! // Every R2T asks for nothing.
//! let target = Target::start(Settings::default(), |sending: &mut Sending| {
//!     if let TargetPdu::R2t(r2t) = &mut sending.now[0].pdu {
//!         r2t.len = 0;
//!     }
//! });
//! println!("iscsi-inq {}", target.url());
//! ```

mod connection;
mod disk;
mod login;
mod outbox;
mod script;
mod settings;
mod shared;
#[cfg(test)]
mod tests;
mod transfer;

pub use disk::{BLOCK, Disk};
pub use script::{Honest, Outgoing, Script, Sending};
pub use settings::{NAME, Settings};

use connection::{Connection, End};
use outbox::Outbox;
use shared::Shared;
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A target that runs until it is dropped.
pub struct Target {
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

impl Target {
    /// Starts a target on a free port. `script` is [`Honest`], or changes what the target sends.
    pub fn start(settings: Settings, script: impl Script) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let shared = Arc::new(Shared {
            addr: listener.local_addr().unwrap(),
            disk: Disk::new(settings.size),
            settings,
            script: Arc::new(script),
            outboxes: Mutex::default(),
            violations: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.listen(&listener)
        });
        Self { shared, listener: Some(thread) }
    }

    /// Returns the address of the portal.
    pub fn addr(&self) -> SocketAddr {
        self.shared.addr
    }

    /// Returns the address of the disk for libiscsi and QEMU.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{NAME}/0", self.shared.addr)
    }

    /// Returns the disk.
    pub fn disk(&self) -> &Disk {
        &self.shared.disk
    }

    /// Returns how initiators have violated the protocol, which closed their connections.
    pub fn violations(&self) -> Vec<String> {
        self.shared.violations.lock().unwrap().clone()
    }

    /// Waits until the script holds at least `count` PDUs of the newest connection.
    pub fn wait_until_held(&self, count: usize) {
        self.newest().wait_until_held(count);
    }

    /// Sends the PDUs that the script holds on the newest connection.
    pub fn release(&self) {
        self.newest().release().unwrap();
    }

    /// Sends a PDU on the newest connection, without asking the script.
    pub fn send(&self, pdu: &Outgoing) {
        self.newest().transmit(pdu).unwrap();
    }

    /// Closes the newest connection.
    pub fn disconnect(&self) {
        self.newest().close(Shutdown::Both);
    }

    fn newest(&self) -> Arc<Outbox> {
        let outboxes = self.shared.outboxes.lock().unwrap();
        Arc::clone(outboxes.last().expect("an initiator has connected"))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.shared.addr).finish()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.shared.addr); // wakes the listener
        self.shared.outboxes.lock().unwrap().iter().for_each(|outbox| outbox.close(Shutdown::Both));
        let _ = self.listener.take().unwrap().join();
    }
}

impl Shared {
    /// Serves connections, each on a thread, until the target is dropped.
    fn listen(&self, listener: &TcpListener) {
        thread::scope(|scope| {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                let outbox = Arc::new(Outbox::new(stream.try_clone().unwrap(), Arc::clone(&self.script)));
                self.outboxes.lock().unwrap().push(Arc::clone(&outbox));
                if self.stopped.load(Ordering::SeqCst) {
                    return;
                }
                scope.spawn(move || self.serve(stream, outbox));
            }
        });
    }

    fn serve(&self, stream: TcpStream, outbox: Arc<Outbox>) {
        if let Err(end) = Connection::new(self, stream, Arc::clone(&outbox)).serve() {
            if let End::Violation(violation) = end {
                self.violations.lock().unwrap().push(violation);
            }
            outbox.close(Shutdown::Both);
        }
    }
}
