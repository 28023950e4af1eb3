//! What a session is, and how one is run with siw. Before this: `operations.rs`, `violations.rs` and `endings.rs`, which list
//! them; after: `end.rs` does Ironwarp's part, `capture.rs` looks at the packets.

use crate::end::{DEPTH, End};
use crate::guest::{Guest, PORT};
use crate::relay::{Ironwarp, relay};
use crate::shape::Shape;
use ironwarp::{Adapter, Cause, Completes, Config, Established, Listener, Setup, WorkRequest};
use std::fmt;
use std::net::SocketAddr;

/// How the siw in a guest was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As the kernel has it.
    Plain,
    /// Asks for CRCs.
    Crc,
    /// Asks for peer-to-peer setup.
    P2p,
    /// Connects with MPA revision 1.
    V1,
}

impl Variant {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Crc => "crc",
            Self::P2p => "p2p",
            Self::V1 => "v1",
        }
    }
}

/// The guest's buffers for sending: the kernel's, and such that never fill. siw 6.1 sent a CRC that was wrong now and then, over data that
/// are right (docs/interop.md).
const USUAL: &str = "4096 16384 4194304";
const LARGE: &str = "4096 33554432 33554432";

/// A step of siw's: from here on it has nothing to send. While it answers a Read, as the one with which Ironwarp asks what siw
/// got, it sends no Terminate (`siw_send_terminate`). So it sends a message, and says when that is done.
pub(crate) const IDLE: &str = "idle";
const IDLE_MESSAGE: usize = 4;

fn idle() -> String {
    format!("send={IDLE_MESSAGE}")
}

/// Which of the adapters has Ironwarp's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Settings {
    #[default]
    Usual,
    /// A message without a receive ends the stream.
    StrictReceive,
    /// Does not ask for CRCs.
    NoCrc,
}

/// Who ends a stream, and what the Terminate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nobody complains.
    Quiet,
    /// Ironwarp sends this.
    Ours(Cause),
    /// siw does.
    Siws(Cause),
    /// siw's process or ours is killed, or gives up: the stream may end anywhere.
    Broken,
}

type Connected = Box<dyn Fn(&mut End) + Send + Sync>;
type Alone = Box<dyn Fn(&Bench, &Guest) + Send + Sync>;

/// What Ironwarp does in a session.
pub(crate) enum Ours {
    /// This, once it is connected and the adverts are exchanged.
    Connected(Connected),
    /// This, and it connects itself, if at all.
    Alone(Alone),
}

/// One session: what each end does, and how it must come out.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    /// Ironwarp connects to siw, not siw to Ironwarp.
    pub(crate) connects: bool,
    pub(crate) completes: Completes,
    pub(crate) shape: Shape,
    /// What siw does from the connection on.
    pub(crate) siw: String,
    pub(crate) ours: Ours,
    /// What Ironwarp does before siw comes to [`IDLE`].
    first: Option<Connected>,
    /// What siw's program says it saw; where it depends on the moment, all that it may have seen, with
    /// bars between; what may be missing ends with one.
    pub(crate) seen: Vec<String>,
    pub(crate) ending: Ending,
    /// siw's process ends with this.
    pub(crate) exit: u8,
}

impl Session {
    /// A session that goes well, of ends that are connected.
    pub(crate) fn new(
        name: &str,
        siw: impl Into<String>,
        ours: impl Fn(&mut End) + Send + Sync + 'static,
    ) -> Self {
        Self::with(name, siw.into(), Ours::Connected(Box::new(ours)))
    }

    /// One in which Ironwarp connects itself, if at all.
    pub(crate) fn alone(
        name: &str,
        siw: impl Into<String>,
        ours: impl Fn(&Bench, &Guest) + Send + Sync + 'static,
    ) -> Self {
        Self::with(name, siw.into(), Ours::Alone(Box::new(ours)))
    }

    fn with(name: &str, siw: String, ours: Ours) -> Self {
        Self {
            name: name.to_owned(),
            settings: Settings::Usual,
            connects: false,
            completes: Completes::WhenSent,
            shape: Shape::default(),
            siw,
            ours,
            first: None,
            seen: Vec::new(),
            ending: Ending::Quiet,
            exit: 0,
        }
    }

    pub(crate) fn connects(self, connects: bool) -> Self {
        Self { connects, ..self }
    }

    pub(crate) fn completes(self, completes: Completes) -> Self {
        Self { completes, ..self }
    }

    pub(crate) fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    pub(crate) fn half(mut self, half: usize) -> Self {
        self.shape.half = half;
        self
    }

    pub(crate) fn receives(mut self, receives: usize, receive: usize) -> Self {
        (self.shape.receives, self.shape.receive) = (receives, receive);
        self
    }

    pub(crate) fn ending(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }

    pub(crate) fn seen(self, seen: &[&str]) -> Self {
        Self { seen: seen.iter().map(|&line| line.to_owned()).collect(), ..self }
    }

    /// Ironwarp does this before siw comes to [`IDLE`].
    pub(crate) fn first(self, first: impl Fn(&mut End) + Send + Sync + 'static) -> Self {
        Self { first: Some(Box::new(first)), ..self }
    }

    pub(crate) fn exit(self, exit: u8) -> Self {
        Self { exit, ..self }
    }

    pub(crate) fn shape(self, change: impl FnOnce(&mut Shape)) -> Self {
        let mut session = self;
        change(&mut session.shape);
        session
    }

    /// The command for the guest.
    fn command(&self, bench: &Bench) -> String {
        let Shape { half, receives, receive, srq, private, private_of_siw, .. } = self.shape;
        let (role, address, port) = match self.connects {
            false => ("client", "10.0.2.2", bench.desk(self.settings).inward.port()),
            true => ("server", "10.0.2.15", PORT),
        };
        let srq = if srq { " srq" } else { "" };
        let buffers = if self.crc(bench.variant) && self.ending == Ending::Quiet { LARGE } else { USUAL };
        let parting = match (self.ending, &self.ours) {
            (Ending::Quiet, Ours::Connected(_)) if self.we_part() => " parting disconnected",
            (Ending::Quiet, Ours::Connected(_)) => " receive=4 disconnect",
            _ => "",
        };
        format!(
            "echo {buffers} > /proc/sys/net/ipv4/tcp_wmem; peer {role} {address} {port} half={half} receives={receives}@{receive} private={private_of_siw} \
             their-private={private}{srq} {}{parting}; code=$?; [ $code = 0 ] || dmesg | tail -n 4; echo PEER ENDED $code",
            self.siw.replace(IDLE, &idle())
        )
    }

    /// Does Ironwarp's part. The guest has come to this session.
    fn run(&self, bench: &Bench, guest: &Guest) {
        match &self.ours {
            Ours::Alone(run) => run(bench, guest),
            Ours::Connected(run) => {
                let mut end = self.connected(bench, guest);
                end.advert();
                // A siw that is still at its own Send sends no Terminate, and its program sees that Send fail.
                guest.says("PEER ok advert");
                if let Some(first) = &self.first {
                    first(&mut end);
                }
                if self.siw.contains(IDLE) {
                    end.receive(IDLE_MESSAGE);
                    guest.says(&format!("PEER ok {}", idle()));
                }
                run(&mut end);
                if self.ending == Ending::Quiet {
                    self.part(&mut end, guest);
                }
            }
        }
        let seen = guest.ended(self.exit);
        assert!(self.saw(&seen), "in {self:?} siw's program saw {seen:?}, not {:?}", self.seen);
    }

    /// Whoever connected also closes, as a rule.
    pub(crate) fn we_part(&self) -> bool {
        self.connects != self.shape.server_parts
    }

    fn part(&self, end: &mut End, guest: &Guest) {
        if self.we_part() {
            // A Send of siw's may be here, and yet not be done there: it would fail.
            guest.says("PEER ok parting");
            end.disconnect();
        } else {
            // Nor may siw close before what it got is acknowledged. Whether this message is, it does not matter.
            let farewell = end.says(4);
            end.qp.post_send(WorkRequest::send(6, &[farewell])).unwrap();
            end.disconnected();
        }
    }

    /// Whether siw's program saw what it should.
    fn saw(&self, seen: &[String]) -> bool {
        let mut seen = seen.iter().peekable();
        let all = self.seen.iter().all(|expected| {
            let mut alternatives = expected.split('|');
            seen.next_if(|&line| alternatives.clone().any(|it| it == line)).is_some()
                || alternatives.any(str::is_empty)
        });
        all && seen.next().is_none()
    }

    fn connected(&self, bench: &Bench, guest: &Guest) -> End {
        let desk = bench.desk(self.settings);
        let end = End::new(&desk.adapter, self.connects, self.completes, self.shape);
        let established = if self.connects {
            guest.says("PEER ok listen");
            end.connect(bench.outward).unwrap()
        } else {
            guest.says("PEER ok prepare");
            end.serve(&desk.listener)
        };
        if self.connects {
            assert_eq!(&established.private_data[..], end.private_of_siw());
        }
        self.agreed(&established, bench.variant);
        end
    }

    /// How the connection was set up, as the variant has it.
    fn agreed(&self, established: &Established, variant: Variant) {
        let agreed = established.agreed;
        let setup = match variant {
            _ if self.connects => self.shape.setup,
            Variant::Plain | Variant::Crc => Setup::ClientServer,
            Variant::P2p => Setup::PeerToPeer,
            Variant::V1 => Setup::Unenhanced,
        };
        assert_eq!((agreed.setup, agreed.ird, agreed.ord), (setup, DEPTH, DEPTH));
        for framing in [agreed.send, agreed.receive] {
            assert_eq!((framing.crc, framing.markers), (self.crc(variant), false), "{self:?}");
        }
    }

    /// Whether CRCs are used. One end suffices; but a siw that wants them does not say so in a Reply.
    pub(crate) fn crc(&self, variant: Variant) -> bool {
        self.settings != Settings::NoCrc || (variant == Variant::Crc && !self.connects)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = if self.connects { "Ironwarp connects" } else { "siw connects" };
        write!(f, "{}: {role}, {:?}", self.name, self.completes)
    }
}

/// An adapter that waits for siw.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) adapter: Adapter,
    pub(crate) listener: Listener,
    /// Where siw connects to.
    inward: SocketAddr,
}

impl Desk {
    fn new(config: Config) -> Self {
        let adapter = Adapter::open(config).unwrap();
        let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let inward = relay(Ironwarp::Listens, listener.local_addr().unwrap());
        Self { adapter, listener, inward }
    }
}

/// What the sessions with one guest share.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) variant: Variant,
    /// Leads to siw, when it listens.
    pub(crate) outward: SocketAddr,
    desks: [Desk; 3],
}

impl Bench {
    /// Connections to `forwarded` lead to the guest.
    pub(crate) fn new(variant: Variant, forwarded: SocketAddr) -> Self {
        let strict = Config { strict_receive: true, ..Config::default() };
        let bare = Config { crc: false, ..Config::default() };
        // siw gives up after ten seconds. That Ironwarp does, too, would hide it.
        let usual = Config { startup: std::time::Duration::from_secs(40), ..Config::default() };
        let desks = [usual, strict, bare].map(Desk::new);
        Self { variant, outward: relay(Ironwarp::Connects, forwarded), desks }
    }

    pub(crate) fn desk(&self, settings: Settings) -> &Desk {
        &self.desks[settings as usize]
    }

    /// The commands for all sessions, one after the other.
    pub(crate) fn commands(&self, sessions: &[Session]) -> String {
        let commands: Vec<String> = sessions.iter().map(|session| session.command(self)).collect();
        commands.join("\n")
    }

    pub(crate) fn run(&self, sessions: &[Session], guest: &Guest) {
        for session in sessions {
            let _told = Told(format!("in {}: {session:?}", self.variant.name()));
            guest.begins();
            session.run(self, guest);
        }
    }
}

/// What is going on, told if it fails: of hundreds of sessions only that one matters.
pub(crate) struct Told(pub(crate) String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0);
        }
    }
}
