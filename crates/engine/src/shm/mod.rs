//! Shared memory for connections between two processes of one host.
//!
//! ```text
//!  offering end                                           the other end
//!      │ ── TCP: an offer with a token, in signals ──────────▶ │  only if the peer is local, and both ends want it
//!      │ ◀───── Unix socket: hello with the token ──────────── │  only if the two processes share no memory yet
//!      │ ─────────────── the descriptor of the memory ───────▶ │
//!      │ ◀──────── in the ring: attach, with the token ─────── │  proves that both ends of the ring are those of TCP
//!      │ ────────────────── in the ring: accept ─────────────▶ │
//!      │ ◀─── each end: a switch signal, then by the ring ───▶ │
//! ```
//!
//! A [`Carrier`](carrier::Carrier) is the memory of two processes, for each pair of their lanes; a
//! [`Channel`](channel::Channel) is one connection's stream in it; a [`RoutedLink`](link::RoutedLink) is the link of a
//! connection that can use either route. [`SharedMemory`] finds or sets up carriers.
//!
//! The other process may belong to another user. All it can reach are its own connections: everything in the memory is
//! checked before it is used, and nothing waits for the other process.

pub(crate) mod carrier;
pub(crate) mod channel;
mod inbox;
pub(crate) mod link;
mod record;
mod setup;
mod table;

use crate::config::Config;
use crate::reactor::command::Command;
use crate::reactor::handle::LaneHandle;
use crate::sys::bell::{Bell, BellListener};
use crate::sys::random::random;
use crate::sys::segment::{MappedSegment, may_copy};
use carrier::{Carrier, Offers};
use channel::{ChannelOwner, Refusal};
use ironwarp_rnic::device::Device;
use ironwarp_rnic::sync::lock;
use ironwarp_shm::Side;
use record::Token;
pub(crate) use setup::TIMEOUT;
use setup::{Adapter, AdapterId, End, Joining, Reception, lane_number, socket_name};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

/// Length of an offer.
pub(crate) const OFFER_LEN: usize = 24;
/// Maximum number of offers that wait for an answer. Beyond that, those that are older than [`TIMEOUT`] are withdrawn. If
/// there are none, connections stay with TCP.
const MAX_OFFERS: usize = 16 << 10;
/// How often a thread that waits for connections to leave looks whether their memory is given back.
const CHECK: Duration = Duration::from_millis(5);

/// The shared memory of an adapter with others.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    id: AdapterId,
    /// The setting `shm_dir`.
    directory: PathBuf,
    device: Arc<Device>,
    state: Mutex<State>,
    /// Connections stay with TCP from now on ([`turn_off`](Self::turn_off)).
    off: AtomicBool,
    /// Locked while a thread looks whether connections have left, so that it misses no notification.
    leaving: Mutex<()>,
    /// Notified when a connection has left shared memory.
    left: Condvar,
    this: Weak<Self>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the adapter listens for others.
    listens: bool,
    /// Offers that wait for an answer.
    offers: HashMap<Token, Offer>,
    /// Carriers by the other end and this adapter's lane. Only those in the memory of the other end: it was found by the
    /// number of its adapter. A process that has come for the memory of this end can claim to be any adapter, and would
    /// be asked for the channels of connections that are not its own, with their tokens.
    carriers: HashMap<(End, u8), Weak<Carrier>>,
    /// Requests for channels of carriers that are being set up.
    joining: HashMap<(End, u8), Vec<Request>>,
    /// All carriers, some of which may be closed.
    all: Vec<Weak<Carrier>>,
}

/// An offer that waits for an answer.
#[derive(Debug)]
struct Offer {
    owner: Weak<dyn ChannelOwner>,
    at: Instant,
    /// A process has come for the memory with the token. No other gets memory, or a token would yield any number of
    /// carriers.
    has_memory: bool,
}

/// A request for a channel.
#[derive(Clone, Debug)]
struct Request {
    token: Token,
    owner: Weak<dyn ChannelOwner>,
}

impl SharedMemory {
    /// Creates the shared memory of an adapter. Returns `None` if the setting `shm` is off, or if a
    /// sandbox denies the system calls that copy to and from the rings.
    pub(crate) fn new(config: &Config, device: &Arc<Device>) -> io::Result<Option<Arc<Self>>> {
        if !config.shm || !config.private {
            return Ok(None);
        }
        if !may_copy() {
            tracing::info!("no shared memory: process_vm_readv is denied");
            return Ok(None);
        }
        let id = random()?;
        Ok(Some(Arc::new_cyclic(|this| Self {
            id,
            directory: config.shm_dir.clone(),
            device: Arc::clone(device),
            state: Mutex::default(),
            off: AtomicBool::new(false),
            leaving: Mutex::default(),
            left: Condvar::new(),
            this: Weak::clone(this),
        })))
    }

    /// Returns whether peers on other hosts get an offer, too: they may be containers that share a directory.
    pub(crate) fn has_directory(&self) -> bool {
        !self.directory.as_os_str().is_empty()
    }

    /// Has new connections stay with TCP, and those that use it already when they next ask for a channel.
    pub(crate) fn turn_off(&self) {
        self.off.store(true, Ordering::SeqCst);
    }

    /// Returns whether connections stay with TCP.
    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::SeqCst)
    }

    /// Returns whether no memory is shared with other processes.
    pub(crate) fn is_unmapped(&self) -> bool {
        lock(&self.state).all.iter().all(|carrier| carrier.strong_count() == 0)
    }

    /// Notifies threads that wait for connections to leave shared memory.
    pub(crate) fn notify_left(&self) {
        let _leaving = lock(&self.leaving);
        self.left.notify_all();
    }

    /// Waits until `has_left` returns true, which is called after each notification, and from time to time. Returns false
    /// if it does not until the deadline.
    pub(crate) fn wait_until_left(&self, deadline: Instant, mut has_left: impl FnMut() -> bool) -> bool {
        let mut leaving = lock(&self.leaving);
        loop {
            if has_left() {
                return true;
            }
            let Some(time) = deadline.checked_duration_since(Instant::now()).filter(|time| !time.is_zero())
            else {
                return false;
            };
            leaving = match self.left.wait_timeout(leaving, time.min(CHECK)) {
                Ok((leaving, _)) => leaving,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Makes an offer for a connection that this lane serves. Returns the bytes to send to the peer.
    pub(crate) fn offer(
        &self,
        owner: &Weak<dyn ChannelOwner>,
        lane: &Arc<LaneHandle>,
    ) -> io::Result<[u8; OFFER_LEN]> {
        let token: Token = random()?;
        self.listen(lane)?;
        let mut state = lock(&self.state);
        if state.offers.len() >= MAX_OFFERS {
            state.offers.retain(|_, offer| offer.at.elapsed() < TIMEOUT);
        }
        if state.offers.len() >= MAX_OFFERS {
            return Err(io::Error::other("too many offers wait for an answer"));
        }
        let owner = Weak::clone(owner);
        state.offers.insert(token, Offer { owner, at: Instant::now(), has_memory: false });
        drop(state);
        let mut offer = [0; OFFER_LEN];
        offer[..16].copy_from_slice(&token);
        offer[16..23].copy_from_slice(&self.id);
        offer[23] = lane_number(lane);
        Ok(offer)
    }

    /// Withdraws the offer of a connection that is closed, if it was not answered.
    pub(crate) fn withdraw(&self, owner: *const ()) {
        lock(&self.state).offers.retain(|_, offer| offer.owner.as_ptr().cast() != owner);
    }

    /// Listens for other adapters, on this lane, unless that is done already.
    fn listen(&self, lane: &Arc<LaneHandle>) -> io::Result<()> {
        let mut state = lock(&self.state);
        if !state.listens {
            let listener = BellListener::new(&self.directory, &socket_name(&self.id))?;
            let this: Weak<dyn Adapter> = Weak::<Self>::clone(&self.this);
            lane.submit(Command::AddSource(Arc::new(Reception::new(listener, &this, lane))));
            state.listens = true;
        }
        Ok(())
    }

    /// Answers an offer of the peer, for a connection that this lane serves: asks for a channel, in the memory that the
    /// two processes share already, or sets up new memory first.
    pub(crate) fn answer(
        &self,
        offer: &[u8; OFFER_LEN],
        owner: &Weak<dyn ChannelOwner>,
        lane: &Arc<LaneHandle>,
    ) {
        let (token, rest) = offer.split_first_chunk().expect("an offer has 24 bytes");
        let adapter = *rest.first_chunk().expect("8 bytes are left");
        let peer = End { adapter, lane: rest[7] };
        let request = Request { token: *token, owner: Weak::clone(owner) };
        self.request(peer, request, lane);
    }

    /// Asks for a channel, in the memory that the two processes share already, or sets up new memory first.
    fn request(&self, peer: End, request: Request, lane: &Arc<LaneHandle>) {
        let (key, token) = ((peer, lane_number(lane)), request.token);
        let carrier = lock(&self.state).carriers.get(&key).and_then(Weak::upgrade).filter(|it| it.is_open());
        if carrier.is_some_and(|carrier| carrier.attach(request.token, &request.owner)) {
            return;
        }
        let mut state = lock(&self.state);
        let requests = state.joining.entry(key).or_default();
        requests.push(request);
        if requests.len() > 1 {
            return; // the memory is being set up
        }
        drop(state);
        if let Some(this) = self.as_adapter()
            && let Err(error) = Joining::start(&this, peer, &token, lane)
        {
            self.retry_joining(peer, lane, &error.to_string());
        }
    }

    /// Returns this adapter, for the other end's answer.
    fn as_adapter(&self) -> Option<Arc<dyn Adapter>> {
        let this: Arc<dyn Adapter> = self.this.upgrade()?;
        Some(this)
    }

    /// Refuses the request whose token was used to join a carrier, and tries again with the next one: the connection of
    /// the first may have closed meanwhile.
    fn retry_joining(&self, peer: End, lane: &Arc<LaneHandle>, why: &str) {
        let (key, mut why) = ((peer, lane_number(lane)), why.to_owned());
        loop {
            let mut state = lock(&self.state);
            let Some(requests) = state.joining.get_mut(&key) else { return };
            let mut requests_left = requests.drain(..).filter(|request| request.owner.strong_count() > 0);
            let refused = requests_left.next();
            let left: Vec<_> = requests_left.collect();
            let next = left.first().map(|request| request.token);
            if next.is_some() {
                *requests = left;
            } else {
                state.joining.remove(&key);
            }
            drop(state);
            refused
                .and_then(|request| request.owner.upgrade())
                .iter()
                .for_each(|owner| owner.on_refused(Refusal::SetUp, &why));
            let (Some(token), Some(this)) = (next, self.as_adapter()) else { return };
            match Joining::start(&this, peer, &token, lane) {
                Ok(()) => return,
                Err(error) => why = error.to_string(),
            }
        }
    }
}

impl Offers for SharedMemory {
    fn take(&self, token: &Token) -> Option<Weak<dyn ChannelOwner>> {
        lock(&self.state).offers.remove(token).map(|offer| offer.owner)
    }
}

impl Adapter for SharedMemory {
    fn id(&self) -> AdapterId {
        self.id
    }

    fn directory(&self) -> &Path {
        &self.directory
    }

    fn find_for_memory(&self, token: &Token) -> Option<Weak<dyn ChannelOwner>> {
        let mut state = lock(&self.state);
        let offer = state.offers.get_mut(token)?;
        (!std::mem::replace(&mut offer.has_memory, true)).then(|| Weak::clone(&offer.owner))
    }

    fn new_carrier(&self, segment: MappedSegment, side: Side, bell: &Arc<Bell>) -> Arc<Carrier> {
        let offers: Weak<dyn Offers> = Weak::<Self>::clone(&self.this);
        bell.set_in_use();
        let carrier = Carrier::new(segment, side, Arc::clone(bell), offers, Arc::clone(&self.device));
        let all = &mut lock(&self.state).all;
        all.retain(|carrier| carrier.strong_count() > 0);
        all.push(Arc::downgrade(&carrier));
        carrier
    }

    fn on_joined(&self, peer: End, lane: &Arc<LaneHandle>, carrier: &Arc<Carrier>) {
        let key = (peer, lane_number(lane));
        let mut state = lock(&self.state);
        state.carriers.retain(|_, carrier| carrier.strong_count() > 0);
        state.carriers.insert(key, Arc::downgrade(carrier));
        let requests = state.joining.remove(&key).unwrap_or_default();
        drop(state);
        for request in requests {
            // The connections of the requests before may be closed, and the carrier with them.
            if !carrier.attach(request.token, &request.owner) {
                self.request(peer, request, lane);
            }
        }
    }

    fn on_not_joined(&self, peer: End, lane: &Arc<LaneHandle>, why: &str) {
        self.retry_joining(peer, lane, why);
    }
}
