//! Sessions, and how one is run with siw.

use crate::end::{DEPTH, End};
use crate::guest::{Guest, PORT};
use crate::relay::{Ironwarp, relay};
use crate::shape::Shape;
use ironwarp::connection::{Established, Listener, MpaMode};
use ironwarp::protocol::Cause;
use ironwarp::queue::{Completes, WorkRequest};
use ironwarp::{Adapter, Config};
use std::fmt;
use std::net::SocketAddr;

/// How the siw of a guest was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// As in the kernel.
    Plain,
    /// Requests CRCs.
    Crc,
    /// Requests peer-to-peer mode.
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

/// Send buffers of the guest: the kernel's default, and large ones that never fill. siw 6.1 occasionally sent a wrong
/// CRC over correct data (docs/interop.md).
const USUAL: &str = "4096 16384 4194304";
const LARGE: &str = "4096 33554432 33554432";

/// A step of siw, after which it has nothing to send. While siw responds to a Read, such as Ironwarp's for
/// acknowledgements, it sends no Terminate (`siw_send_terminate`). So it sends a message, and reports its completion.
pub(crate) const IDLE: &str = "idle";
const IDLE_MESSAGE: usize = 4;

fn idle() -> String {
    format!("send={IDLE_MESSAGE}")
}

/// The settings of Ironwarp's adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Settings {
    #[default]
    Usual,
    /// With strict receives: a message without a receive ends the stream.
    StrictReceive,
    /// Does not request CRCs.
    NoCrc,
}

/// Which end terminates a stream, and the Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Neither.
    Quiet,
    /// Ironwarp sends this Terminate.
    Ours(Cause),
    /// siw sends this Terminate.
    Siws(Cause),
    /// A process is killed or times out: the stream may end anywhere.
    Broken,
}

type Connected = Box<dyn Fn(&mut End) + Send + Sync>;
type Alone = Box<dyn Fn(&Bench, &Guest) + Send + Sync>;

/// What Ironwarp does in a session.
pub(crate) enum Ours {
    /// Runs this function after connecting and exchanging adverts.
    Connected(Connected),
    /// Runs this function, which connects itself, if at all.
    Alone(Alone),
}

/// One session: what each end does, and the expected result.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) settings: Settings,
    /// Whether Ironwarp connects to siw, instead of siw to Ironwarp.
    pub(crate) connects: bool,
    pub(crate) completes: Completes,
    pub(crate) shape: Shape,
    /// Steps of siw after connecting.
    pub(crate) siw: String,
    pub(crate) ours: Ours,
    /// What Ironwarp does before siw reaches [`IDLE`].
    first: Option<Connected>,
    /// Expected events of siw's program. Where they depend on timing, the alternatives are separated by bars; an
    /// optional event ends with a bar.
    pub(crate) seen: Vec<String>,
    pub(crate) ending: Ending,
    /// Expected exit code of siw's process.
    pub(crate) exit: u8,
}

impl Session {
    /// Creates a session of connected ends that succeeds.
    pub(crate) fn new(
        name: &str,
        siw: impl Into<String>,
        ours: impl Fn(&mut End) + Send + Sync + 'static,
    ) -> Self {
        Self::with(name, siw.into(), Ours::Connected(Box::new(ours)))
    }

    /// Creates a session in which Ironwarp connects itself, if at all.
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

    /// Sets what Ironwarp does before siw reaches [`IDLE`].
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

    /// Returns the command for the guest.
    fn command(&self, bench: &Bench) -> String {
        let Shape { half, receives, receive, srq, private, private_of_siw, .. } = self.shape;
        let (role, address, port) = match self.connects {
            false => ("client", "10.0.2.2", bench.endpoint(self.settings).inward.port()),
            true => ("server", "10.0.2.15", PORT),
        };
        let srq = if srq { " srq" } else { "" };
        let buffers = if self.crc(bench.variant) && self.ending == Ending::Quiet { LARGE } else { USUAL };
        let parting = match (self.ending, &self.ours) {
            (Ending::Quiet, Ours::Connected(_)) if self.ironwarp_closes() => " parting disconnected",
            (Ending::Quiet, Ours::Connected(_)) => " receive=4 disconnect",
            _ => "",
        };
        format!(
            "echo {buffers} > /proc/sys/net/ipv4/tcp_wmem; peer {role} {address} {port} half={half} receives={receives}@{receive} private={private_of_siw} \
             their-private={private}{srq} {}{parting}; code=$?; [ $code = 0 ] || dmesg | tail -n 4; echo PEER ENDED $code",
            self.siw.replace(IDLE, &idle())
        )
    }

    /// Runs Ironwarp's part of the session, after the guest has started the session.
    fn run(&self, bench: &Bench, guest: &Guest) {
        match &self.ours {
            Ours::Alone(run) => run(bench, guest),
            Ours::Connected(run) => {
                let mut end = self.connected(bench, guest);
                end.advert();
                // While its own Send is incomplete, siw sends no Terminate, and that Send fails.
                guest.wait_for_line("PEER ok advert");
                if let Some(first) = &self.first {
                    first(&mut end);
                }
                if self.siw.contains(IDLE) {
                    end.receive(IDLE_MESSAGE);
                    guest.wait_for_line(&format!("PEER ok {}", idle()));
                }
                run(&mut end);
                if self.ending == Ending::Quiet {
                    self.close(&mut end, guest);
                }
            }
        }
        let seen = guest.wait_for_exit(self.exit);
        assert!(self.is_expected(&seen), "in {self:?} siw's program saw {seen:?}, not {:?}", self.seen);
    }

    /// Returns whether Ironwarp closes the connection. By default, the end that connected also closes.
    pub(crate) fn ironwarp_closes(&self) -> bool {
        self.connects != self.shape.server_closes
    }

    /// Closes the connection, or waits until siw closes it.
    fn close(&self, end: &mut End, guest: &Guest) {
        if self.ironwarp_closes() {
            // A Send of siw may have arrived here without being complete there: it would fail.
            guest.wait_for_line("PEER ok parting");
            end.disconnect();
        } else {
            // Nor may siw close before it has acknowledged all messages, except possibly this one.
            let message = end.fill_message(4);
            end.qp.post_send(WorkRequest::send(6, &[message])).unwrap();
            if self.completes == Completes::WhenAcknowledged {
                // siw may close while it answers the empty Read behind this message, and cut the response short.
                let error = end.wait_for_end();
                assert!(error.starts_with("the peer closed the connection"), "{error}");
            } else {
                end.expect_closed();
            }
        }
    }

    /// Returns whether siw's program saw the expected events.
    fn is_expected(&self, seen: &[String]) -> bool {
        let mut seen = seen.iter().peekable();
        let all = self.seen.iter().all(|expected| {
            let mut alternatives = expected.split('|');
            seen.next_if(|&line| alternatives.clone().any(|it| it == line)).is_some()
                || alternatives.any(str::is_empty)
        });
        all && seen.next().is_none()
    }

    fn connected(&self, bench: &Bench, guest: &Guest) -> End {
        let endpoint = bench.endpoint(self.settings);
        let end = End::new(&endpoint.adapter, self.connects, self.completes, self.shape);
        let established = if self.connects {
            guest.wait_for_line("PEER ok listen");
            end.connect(bench.outward).unwrap()
        } else {
            guest.wait_for_line("PEER ok prepare");
            end.serve(&endpoint.listener)
        };
        if self.connects {
            assert_eq!(&established.private_data[..], end.private_of_siw());
        }
        self.agreed(&established, bench.variant);
        end
    }

    /// Returns how the connection was set up, according to the variant.
    fn agreed(&self, established: &Established, variant: Variant) {
        let agreed = established.agreed;
        let setup = match variant {
            _ if self.connects => self.shape.setup,
            Variant::Plain | Variant::Crc => MpaMode::ClientServer,
            Variant::P2p => MpaMode::PeerToPeer,
            Variant::V1 => MpaMode::Unenhanced,
        };
        assert_eq!((agreed.mode, agreed.ird, agreed.ord), (setup, DEPTH, DEPTH));
        for framing in [agreed.send, agreed.receive] {
            assert_eq!((framing.crc, framing.markers), (self.crc(variant), false), "{self:?}");
        }
    }

    /// Returns whether CRCs are used. One end suffices; but a siw that requires them does not say so in a Reply.
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

/// An adapter that listens for siw.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) adapter: Adapter,
    pub(crate) listener: Listener,
    /// The address that siw connects to.
    inward: SocketAddr,
}

impl Endpoint {
    fn new(config: Config) -> Self {
        let adapter = Adapter::open(config).unwrap();
        let listener = adapter.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let inward = relay(Ironwarp::Listens, listener.local_addr().unwrap());
        Self { adapter, listener, inward }
    }
}

/// State shared by the sessions with one guest.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) variant: Variant,
    /// An address that leads to siw when it listens.
    pub(crate) outward: SocketAddr,
    endpoints: [Endpoint; 3],
}

impl Bench {
    /// Connections to `forwarded` lead to the guest.
    pub(crate) fn new(variant: Variant, forwarded: SocketAddr) -> Self {
        let strict = Config::default().strict_receive(true);
        let bare = Config::default().crc(false);
        // siw times out after ten seconds. A timeout of Ironwarp would hide that.
        let usual = Config::default().startup(std::time::Duration::from_secs(40));
        let endpoints = [usual, strict, bare].map(Endpoint::new);
        Self { variant, outward: relay(Ironwarp::Connects, forwarded), endpoints }
    }

    pub(crate) fn endpoint(&self, settings: Settings) -> &Endpoint {
        &self.endpoints[settings as usize]
    }

    /// Returns the commands for all sessions, one after the other.
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

/// Prints the name of the current session if it fails.
pub(crate) struct Told(pub(crate) String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.0);
        }
    }
}
