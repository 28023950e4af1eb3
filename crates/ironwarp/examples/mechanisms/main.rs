//! One small program for each mechanism of the adapter. Each runs both ends of its connections, checks every byte, and
//! says in plain words what happened.
//!
//!     cargo run -q --example mechanisms memory window
//!
//! ```text
//!  ends.rs           two connected ends, and how to wait for a completion
//!  notification.rs   completion handlers: several, moved, solicited, classes, context, end
//!  messages.rs       operations, acknowledged and connectionless channels, cells, immediate data, Read V2, inline data
//!  memory.rs         access checks, translation, windows, one-touch, registration by request
//!  queues.rs         control queue, shared send queue
//!  functions.rs      functions, and connections that move between them
//!  events.rs         event queues: moderation, overflow, event map, redirection table
//! ```
//!
//! docs/seeds.md shows each command with its output, and which requirement it is for.

mod ends;
mod events;
mod functions;
mod memory;
mod messages;
mod notification;
mod queues;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Show one mechanism of the adapter at work
#[derive(Parser)]
#[command(name = "mechanisms")]
enum Command {
    /// Completion handlers and their events
    #[command(subcommand)]
    Notification(Notification),
    /// Operations, channels and messages
    #[command(subcommand)]
    Messages(Messages),
    /// Registered memory and its protection
    #[command(subcommand)]
    Memory(Memory),
    /// Queues that serve several connections
    #[command(subcommand)]
    Queues(Queues),
    /// Event queues, vectors and lanes
    #[command(subcommand)]
    Events(Events),
    /// Parts of an adapter with objects of their own
    #[command(subcommand)]
    Functions(Functions),
}

#[derive(Subcommand)]
enum Functions {
    /// A connection moves from one function to another
    Move,
}

#[derive(Subcommand)]
enum Notification {
    /// Two completion handlers, each with its own descriptor
    Handlers,
    /// A completion queue changes its handler while messages arrive
    Move,
    /// Events for solicited messages and errors only
    Solicited,
    /// A low-latency handler, and the lanes that serve it
    Classes,
    /// The context of a queue pair
    Context,
    /// The end: everything posted is flushed, then silence
    End,
}

#[derive(Subcommand)]
enum Messages {
    /// Send, Write, Read and atomic operations
    Operations,
    /// Acknowledged and unacknowledged channels, with and without a connection
    Channels,
    /// A message as a sequence of cells
    Cells,
    /// Immediate data with Sends and Writes
    Immediate,
    /// A Read that does not disclose where the data goes
    ReadV2,
    /// Data inside the request
    Inline,
    /// More Reads than the peer accepts at a time
    Reads,
}

#[derive(Subcommand)]
enum Memory {
    /// Accesses that are refused, and why
    Checks,
    /// One tag for several buffers, two tags for one buffer
    Translation,
    /// A window to a part of a region
    Window,
    /// Memory for one message
    Once,
    /// Registration by work request, ended by the peer
    Register,
    /// A registration that fails: try again, or end the connection
    Failure,
    /// The reason that the peer reports
    Terminate,
}

#[derive(Subcommand)]
enum Queues {
    /// Registrations in a pipeline, used before they are complete
    Control,
    /// One send queue for several connections
    SharedSend,
}

#[derive(Subcommand)]
enum Events {
    /// Fewer wakeups for the same events
    Moderation,
    /// What happens when a queue is full
    Overflow,
    /// Events and processors mapped to queues and vectors
    Map,
    /// New connections distributed over lanes
    Table,
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Notification(what) => match what {
            Notification::Handlers => notification::handlers(),
            Notification::Move => notification::change_handler(),
            Notification::Solicited => notification::solicited(),
            Notification::Classes => notification::classes(),
            Notification::Context => notification::context(),
            Notification::End => notification::end(),
        },
        Command::Messages(what) => match what {
            Messages::Operations => messages::operations(),
            Messages::Channels => messages::channels(),
            Messages::Cells => messages::cells(),
            Messages::Immediate => messages::immediate(),
            Messages::ReadV2 => messages::read_v2(),
            Messages::Inline => messages::inline(),
            Messages::Reads => messages::reads(),
        },
        Command::Memory(what) => match what {
            Memory::Checks => memory::checks(),
            Memory::Translation => memory::translation(),
            Memory::Window => memory::window(),
            Memory::Once => memory::once(),
            Memory::Register => memory::register(),
            Memory::Failure => memory::failure(),
            Memory::Terminate => memory::terminate(),
        },
        Command::Queues(what) => match what {
            Queues::Control => queues::control(),
            Queues::SharedSend => queues::shared_send(),
        },
        Command::Events(what) => match what {
            Events::Moderation => events::moderation(),
            Events::Overflow => events::overflow(),
            Events::Map => events::map(),
            Events::Table => events::table(),
        },
        Command::Functions(Functions::Move) => functions::move_connection(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mechanisms: {error}");
            ExitCode::FAILURE
        }
    }
}
