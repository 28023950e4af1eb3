//! One end of the traffic: several connections on one completion queue, all verbs, and every byte checked.

use super::stream::{HEADER, KINDS, Kind, SLOT, Stream, WINDOW, WINDOWED, bytes, len};
use ironwarp::WaitError;
use ironwarp::hand_over::TakenOver;
use ironwarp::memory::{FastRegion, RemoteAddr, Tag, Window};
use ironwarp::prelude::*;
use ironwarp::queue::{PostError, SharedReceiveQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of connections with a [`Stream`]. The last two share a receive queue.
pub(crate) const STREAMS: usize = 4;
/// The connection whose requests a thread posts at all times, also while the adapter moves.
pub(crate) const FLOOD: usize = STREAMS;
/// Number of connections.
pub(crate) const CONNECTIONS: usize = STREAMS + 1;
/// Maximum number of requests of [`FLOOD`] that are outstanding.
const FLOODED: u64 = 1024;
/// The interval of the requests of [`FLOOD`], so that they leave time for others.
const PACE: Duration = Duration::from_micros(50);
/// Length of a part of the region that holds a slot for each operation.
const SLOTS: usize = SLOT * WINDOW as usize;
/// Offsets in the part of the region that belongs to a connection: what is sent, received and written by the peer.
const OUT: usize = 0;
const IN: usize = SLOTS;
const WRITTEN: usize = 2 * SLOTS;
/// What is written to a window of the peer, and what the own window shows.
const TO_WINDOW: usize = 3 * SLOTS;
const WINDOW_AT: usize = TO_WINDOW + SLOT;
/// The number of operations that the peer has seen, and the words that its atomic operations change.
const CONFIRMED: usize = WINDOW_AT + SLOT;
const ADDED: usize = CONFIRMED + 8;
const SWAPPED: usize = CONFIRMED + 16;
/// Where the results of [`FLOOD`] go.
const RESULTS: usize = CONFIRMED + 24;
const AREA: usize = RESULTS + FLOODED as usize * 8;
/// Marks the identifiers of receives.
const RECEIVE: u64 = 1 << 63;
/// How long to wait for a completion before memory is checked that the peer writes to.
const LOOK: Duration = Duration::from_millis(1);

/// The connection has ended, for the reason given.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) String);

impl From<PostError> for Ended {
    fn from(error: PostError) -> Self {
        Self(error.to_string())
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Station {
    /// Zero for the end that stays, one for the end that moves.
    end: u64,
    pub(crate) adapter: Adapter,
    cq: CompletionQueue,
    pub(crate) qps: Vec<Arc<QueuePair>>,
    srq: SharedReceiveQueue,
    pub(crate) region: Arc<MemoryRegion>,
    /// The tag of the region of the other end.
    pub(crate) theirs: Tag,
    pub(crate) streams: Vec<Stream>,
    /// Number of requests of [`FLOOD`] that have completed.
    pub(crate) flooded: Arc<AtomicU64>,
    /// A window and a region for each connection, at the end that stays.
    windows: Vec<(Window, FastRegion)>,
    /// Whether no further round of operations begins.
    pub(crate) is_finishing: bool,
}

impl Station {
    /// Creates an end. `connect` connects a queue pair.
    pub(crate) fn new(end: u64, adapter: Adapter, mut connect: impl FnMut(&QueuePair)) -> Self {
        let (cq, domain) = (adapter.completion_queue(8192).unwrap(), adapter.protection_domain());
        let buffer = Buffer::builder().shareable().allocate(AREA * CONNECTIONS).unwrap();
        let region = domain.register(buffer, Access::all()).unwrap();
        let srq = domain.shared_receive_queue(2 * WINDOW as usize);
        let windows = |_| {
            let region = domain.allocate_region([Buffer::new(SLOT).unwrap()]).unwrap();
            (domain.window().unwrap(), region)
        };
        let windows = if end == 0 { (0..STREAMS).map(windows).collect() } else { Vec::new() };
        let qps = (0..CONNECTIONS).map(|connection| {
            let builder = domain.queue_pair(&cq).send_depth(2 * FLOODED as usize);
            let builder = if is_shared(connection) { builder.srq(&srq) } else { builder };
            let qp = builder.create().unwrap();
            Arc::new(qp)
        });
        let qps: Vec<_> = qps.collect();
        let mut station = Self {
            end,
            adapter,
            cq,
            qps,
            srq,
            region: Arc::new(region),
            theirs: Tag(0),
            streams: vec![Stream::default(); STREAMS],
            flooded: Arc::default(),
            windows,
            is_finishing: false,
        };
        for connection in 0..STREAMS {
            (0..WINDOW).for_each(|slot| station.post_receive(connection, slot).unwrap());
        }
        station.qps.iter().for_each(|qp| connect(qp));
        station
    }

    /// Creates the end that has moved here.
    pub(crate) fn of(mut taken: TakenOver) -> Self {
        let words = taken.data.as_chunks::<8>().0;
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let (theirs, flooded) = (words.next().unwrap(), words.next().unwrap());
        let is_finishing = words.next().unwrap() == 1;
        Self {
            end: 1,
            adapter: taken.adapter,
            cq: taken.completion_queues.remove(0),
            qps: taken.queue_pairs.into_iter().map(Arc::new).collect(),
            srq: taken.shared_receive_queues.remove(0),
            region: Arc::new(taken.regions.remove(0)),
            theirs: Tag(u32::try_from(theirs).unwrap()),
            streams: (0..STREAMS).map(|_| Stream::read(&mut words)).collect(),
            flooded: Arc::new(AtomicU64::new(flooded)),
            windows: Vec::new(),
            is_finishing,
        }
    }

    /// Returns the state of the program that moves with the adapter.
    pub(crate) fn state(&self) -> Vec<u8> {
        let flooded = self.flooded.load(Ordering::Relaxed);
        let mut words = vec![u64::from(self.theirs.0), flooded, u64::from(self.is_finishing)];
        self.streams.iter().for_each(|stream| stream.write(&mut words));
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Acts until `stop` returns true, or the connections have ended.
    pub(crate) fn run(&mut self, mut stop: impl FnMut(&Self) -> bool) -> Result<(), Ended> {
        while !stop(self) {
            for connection in 0..STREAMS {
                self.fill(connection)?;
            }
            match self.cq.wait(LOOK) {
                Ok(completion) => self.handle(completion)?,
                Err(WaitError::TimedOut) => continue,
                Err(error) => panic!("{error}"),
            }
            while let Some(completion) = self.cq.poll_one().unwrap() {
                self.handle(completion)?;
            }
        }
        Ok(())
    }

    /// Whether all operations of this end have completed at both ends, and those of the other end were confirmed.
    pub(crate) fn is_finished(&self) -> bool {
        self.is_finishing
            && self.streams.iter().enumerate().all(|(connection, stream)| {
                let own = stream.posted.is_multiple_of(KINDS) && self.confirmed(connection) == stream.posted;
                own && stream.outstanding.is_empty() && stream.confirmed == stream.seen
            })
    }

    /// Returns how many operations were posted, seen, and executed atomically here, for each connection.
    pub(crate) fn counts(&self) -> Vec<[u64; 4]> {
        let count = |(connection, stream): (usize, &Stream)| {
            let [added, swapped] = [ADDED, SWAPPED].map(|at| self.word(connection, at));
            [stream.posted, stream.seen, added, swapped]
        };
        self.streams.iter().enumerate().map(count).collect()
    }

    /// Returns how many requests of [`FLOOD`] were executed here.
    pub(crate) fn flood(&self) -> u64 {
        self.word(FLOOD, ADDED)
    }

    fn word(&self, connection: usize, at: usize) -> u64 {
        self.region.view::<u64>(connection * AREA + at).unwrap().load()
    }

    fn confirmed(&self, connection: usize) -> u64 {
        self.word(connection, CONFIRMED)
    }

    fn remote(&self, connection: usize, at: usize) -> RemoteAddr {
        RemoteAddr { tag: self.theirs, offset: (connection * AREA + at) as u64 }
    }

    /// Posts a receive with the memory of this slot.
    fn post_receive(&mut self, connection: usize, slot: u64) -> Result<(), Ended> {
        let at = connection * AREA + IN + slot as usize * SLOT;
        let list = [self.region.slice(at..at + SLOT).unwrap()];
        let id = RECEIVE | (connection as u64 * WINDOW + slot);
        if is_shared(connection) {
            self.srq.post_receive(id, &list)?;
        } else {
            self.qps[connection].post_receive(id, &list)?;
            self.streams[connection].receives += 1;
        }
        Ok(())
    }

    /// Posts a request. `number` is the operation that it belongs to.
    fn post(
        &mut self,
        connection: usize,
        number: Option<u64>,
        request: impl FnOnce(u64) -> WorkRequest,
    ) -> Result<(), Ended> {
        let stream = &mut self.streams[connection];
        self.qps[connection].post_send(request(stream.requests))?;
        stream.requests += 1;
        stream.outstanding.push_back(number);
        Ok(())
    }

    /// Posts everything that can be posted.
    fn fill(&mut self, connection: usize) -> Result<(), Ended> {
        let Stream { seen, confirmed, .. } = self.streams[connection];
        if seen > confirmed {
            let to = self.remote(connection, CONFIRMED);
            self.post(connection, None, |id| WorkRequest::write_inline(id, &seen.to_ne_bytes(), to))?;
            self.streams[connection].confirmed = seen;
        }
        loop {
            let stream = &self.streams[connection];
            let number = stream.posted;
            let first = stream.completed.min(self.confirmed(connection));
            if number - first >= WINDOW || (self.is_finishing && number.is_multiple_of(KINDS)) {
                return Ok(());
            }
            self.post_operation(connection, number)?;
            self.streams[connection].posted += 1;
        }
    }

    fn post_operation(&mut self, connection: usize, number: u64) -> Result<(), Ended> {
        let slot = (number % WINDOW) as usize * SLOT;
        let (at, len) = (connection * AREA + OUT + slot, len(connection, number));
        let (kind, round) = (Kind::of(number), number / KINDS);
        let to = self.remote(connection, WRITTEN + slot);
        let mut content = bytes(self.end, connection, number, len);
        let mut invalidate = None;
        let mut header = [number, u64::MAX, 0];
        if kind == Kind::Send {
            header[1] = self.bind(connection)?.map_or(u64::MAX, |tag| u64::from(tag.0));
        }
        if kind == Kind::SendInvalidate
            && let Some(tag) = self.streams[connection].tag
        {
            self.write_to_window(connection, Tag(tag))?;
            (header[1], header[2], invalidate) = (u64::from(tag), 1, Some(Tag(tag)));
        }
        if !matches!(kind, Kind::Write | Kind::WriteImmediate) {
            content[..HEADER].copy_from_slice(header.map(u64::to_le_bytes).as_flattened());
        }
        if !matches!(kind, Kind::ReadBack | Kind::FetchAdd | Kind::CompareSwap) {
            self.region.write(at, &content).unwrap();
        }
        // In two elements, which begin and end anywhere.
        let list = [at..at + len / 3, at + len / 3..at + len].map(|range| self.region.slice(range).unwrap());
        let word = self.region.slice(at..at + 8).unwrap();
        let immediate = number as u32;
        match kind {
            // Fenced, because the earlier Read of the same memory might otherwise be executed later.
            Kind::Write => {
                self.post(connection, Some(number), |id| WorkRequest::write(id, &list, to).fenced())
            }
            Kind::Send => self.post(connection, Some(number), |id| WorkRequest::send(id, &list).into()),
            Kind::ReadBack => {
                let written = number - 2;
                let from = self.remote(connection, WRITTEN + (written % WINDOW) as usize * SLOT);
                let len = super::stream::len(connection, written);
                let sink = self.region.slice(at..at + len).unwrap();
                self.post(connection, Some(number), |id| WorkRequest::read(id, &[sink], from))
            }
            Kind::FetchAdd => {
                let added = self.remote(connection, ADDED);
                self.post(connection, Some(number), |id| WorkRequest::fetch_add(id, word, added, 1))
            }
            Kind::SendImmediate => self.post(connection, Some(number), |id| {
                WorkRequest::send(id, &list).immediate(immediate).into()
            }),
            Kind::CompareSwap => {
                let swapped = self.remote(connection, SWAPPED);
                self.post(connection, Some(number), |id| {
                    WorkRequest::compare_swap(id, word, swapped, round, round + 1)
                })
            }
            Kind::WriteImmediate => self.post(connection, Some(number), |id| {
                WorkRequest::write_immediate(id, &list, to, immediate).into()
            }),
            Kind::SendInvalidate => {
                self.post(connection, Some(number), |id| {
                    let send = WorkRequest::send(id, &list);
                    match invalidate {
                        Some(tag) => send.invalidate(tag).into(),
                        None => send.into(),
                    }
                })?;
                self.streams[connection].tag = None;
                Ok(())
            }
        }
    }

    /// Binds the window, or registers the region, of this end if the peer has invalidated the last. Returns the new tag.
    fn bind(&mut self, connection: usize) -> Result<Option<Tag>, Ended> {
        let stream = &self.streams[connection];
        let Some((window, region)) = self.windows.get(connection).filter(|_| !stream.is_bound) else {
            return Ok(None);
        };
        let at = connection * AREA + WINDOW_AT;
        let is_window = stream.bindings.is_multiple_of(2);
        let request = if is_window {
            WorkRequest::bind(stream.requests, window, &self.region, at..at + SLOT, Access::REMOTE_WRITE)
                .unwrap()
        } else {
            WorkRequest::register(stream.requests, region, Access::REMOTE_WRITE | Access::LOCAL_WRITE)
        };
        self.qps[connection].post_send(request)?;
        let tag = if is_window { window.tag() } else { region.tag() };
        let stream = &mut self.streams[connection];
        stream.requests += 1;
        stream.outstanding.push_back(None);
        stream.is_bound = true;
        stream.bindings += 1;
        Ok(Some(tag))
    }

    /// Writes to a window of the peer, which invalidates it with the next Send.
    fn write_to_window(&mut self, connection: usize, tag: Tag) -> Result<(), Ended> {
        let at = connection * AREA + TO_WINDOW;
        self.region.write(at, &windowed(tag)).unwrap();
        let list = [self.region.slice(at..at + WINDOWED).unwrap()];
        self.post(connection, None, |id| WorkRequest::write(id, &list, RemoteAddr { tag, offset: 0 }))
    }

    /// Handles a completion.
    fn handle(&mut self, completion: Completion) -> Result<(), Ended> {
        let completion = completion.success().map_err(|error| Ended(error.to_string()))?;
        let connection = self.qps.iter().position(|qp| qp.id() == completion.qp).unwrap();
        if connection == FLOOD {
            self.check_flood(&completion);
            return Ok(());
        }
        if completion.wr_id & RECEIVE != 0 {
            return self.check_message(connection, &completion);
        }
        let stream = &mut self.streams[connection];
        assert_eq!(completion.wr_id, stream.completions, "connection {connection}: {completion:?}");
        stream.completions += 1;
        let Some(number) = stream.outstanding.pop_front().unwrap() else { return Ok(()) };
        assert_eq!(number, stream.completed);
        stream.completed += 1;
        let at = connection * AREA + OUT + (number % WINDOW) as usize * SLOT;
        match Kind::of(number) {
            Kind::ReadBack => self.check(self.end, connection, number - 2, at, 0),
            Kind::FetchAdd | Kind::CompareSwap => {
                let before = self.region.view::<u64>(at).unwrap().load();
                assert_eq!(before, number / KINDS, "connection {connection}, operation {number}");
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a request of [`FLOOD`], which has completed.
    fn check_flood(&self, completion: &Completion) {
        let number = self.flooded.load(Ordering::Relaxed);
        assert_eq!(completion.wr_id, number, "{completion:?}");
        assert_eq!(self.word(FLOOD, RESULTS + (number % FLOODED) as usize * 8), number);
        self.flooded.store(number + 1, Ordering::Release);
    }

    /// Checks that memory has the bytes of an operation of `end`, except the first `skip`.
    fn check(&self, end: u64, connection: usize, number: u64, at: usize, skip: usize) {
        let expected = bytes(end, connection, number, len(connection, number));
        let mut found = vec![0; expected.len()];
        self.region.read(at, &mut found).unwrap();
        let wrong = (skip..found.len()).find(|at| found[*at] != expected[*at]);
        assert_eq!(
            wrong,
            None,
            "connection {connection}, operation {number} of end {end}, {} bytes",
            found.len()
        );
    }

    /// Checks a message that was received, and what the peer has written before it.
    fn check_message(&mut self, connection: usize, completion: &Completion) -> Result<(), Ended> {
        let place = completion.wr_id & !RECEIVE;
        let (owner, slot) = ((place / WINDOW) as usize, place % WINDOW);
        let stream = &mut self.streams[connection];
        if is_shared(connection) {
            assert!(is_shared(owner), "{completion:?}");
        } else {
            assert_eq!((owner, slot), (connection, stream.received % WINDOW), "{completion:?}");
        }
        stream.received += 1;
        let is_message = |number: &u64| {
            !matches!(Kind::of(*number), Kind::Write | Kind::ReadBack | Kind::FetchAdd | Kind::CompareSwap)
        };
        let number = (stream.seen..).find(is_message).unwrap();
        let earlier = stream.seen..number;
        let other = 1 - self.end;
        let written = |number: u64| connection * AREA + WRITTEN + (number % WINDOW) as usize * SLOT;
        let kind = Kind::of(number);
        let immediate = matches!(kind, Kind::SendImmediate | Kind::WriteImmediate).then_some(number as u32);
        let found = (completion.immediate, completion.byte_len as usize);
        assert_eq!(found, (immediate, len(connection, number)), "operation {number}: {completion:?}");
        for number in earlier.filter(|number| Kind::of(*number) == Kind::Write) {
            self.check(other, connection, number, written(number), 0);
        }
        if kind == Kind::WriteImmediate {
            self.check(other, connection, number, written(number), 0);
        } else {
            let at = owner * AREA + IN + slot as usize * SLOT;
            self.check(other, connection, number, at, HEADER);
            let mut header = [0; HEADER];
            self.region.read(at, &mut header).unwrap();
            let [first, tag, invalidates] =
                [0, 8, 16].map(|at| u64::from_le_bytes(header[at..at + 8].try_into().unwrap()));
            assert_eq!(first, number, "connection {connection}");
            let tag = u32::try_from(tag).ok();
            let expected = tag.filter(|_| invalidates == 1).map(Tag);
            assert_eq!(completion.invalidated, expected, "operation {number}: {completion:?}");
            match expected {
                Some(tag) => self.check_window(connection, tag),
                None if tag.is_some() => self.streams[connection].tag = tag,
                None => {}
            }
        }
        self.streams[connection].seen = number + 1;
        self.post_receive(owner, slot)
    }

    /// Checks what the peer has written to the window or region whose tag it has invalidated.
    fn check_window(&mut self, connection: usize, tag: Tag) {
        let mut found = vec![0; WINDOWED];
        let stream = &self.streams[connection];
        if stream.bindings % 2 == 1 {
            self.region.read(connection * AREA + WINDOW_AT, &mut found).unwrap();
        } else {
            self.windows[connection].1.read(0, &mut found).unwrap();
        }
        assert!(stream.is_bound && found == windowed(tag), "window {tag:?}");
        let stream = &mut self.streams[connection];
        stream.is_bound = false;
        stream.invalidated += 1;
    }

    /// Posts requests of [`FLOOD`] until one is refused because the adapter moves, or `stop` returns true. `first` is the number of
    /// the first. Returns the number of the next.
    pub(crate) fn flood_from(
        &self,
        first: u64,
        stop: impl Fn() -> bool + Send + 'static,
    ) -> std::thread::JoinHandle<u64> {
        let (qp, region, flooded) =
            (Arc::clone(&self.qps[FLOOD]), Arc::clone(&self.region), Arc::clone(&self.flooded));
        let word = self.remote(FLOOD, ADDED);
        std::thread::spawn(move || {
            let mut number = first;
            while !stop() {
                if number - flooded.load(Ordering::Acquire) >= FLOODED {
                    std::thread::yield_now();
                    continue;
                }
                let at = FLOOD * AREA + RESULTS + (number % FLOODED) as usize * 8;
                let request = WorkRequest::fetch_add(number, region.slice(at..at + 8).unwrap(), word, 1);
                std::thread::sleep(PACE);
                match qp.post_send(request) {
                    Ok(()) => number += 1,
                    Err(PostError::Full { .. }) => std::thread::yield_now(),
                    Err(_) => break,
                }
            }
            number
        })
    }
}

fn is_shared(connection: usize) -> bool {
    (2..STREAMS).contains(&connection)
}

/// Returns what is written to a window.
fn windowed(tag: Tag) -> Vec<u8> {
    bytes(1, STREAMS, u64::from(tag.0), WINDOWED)
}
