//! The flight recorder: the last events of each thread, in rings in a memory-mapped file. The kernel keeps what was written
//! to the file when the process is killed, so that the events before a crash can be read afterwards.
//!
//! [`start`] creates the file, in a directory that only its user can enter. From then on [`record`] adds an event to the
//! ring of the calling thread, which gets one with its first event. A process that has not started the recorder records
//! nothing: then `record` costs a load.
//!
//! An event is a kind and an argument, whose meaning this crate does not know (`ironwarp-rnic` defines both), the number
//! of a queue pair, and the time. No data of the program is recorded.
//!
//! | file | for | `unsafe` |
//! |---|---|---|
//! | `ring` | the ring of a thread: adds an event | |
//! | `clock` | the processor's counter, as the time of an event | reads the counter |
//! | `map` | the file in memory | maps memory |
//! | `directory` | the runtime directory: creates, opens and removes files in it | |
//! | `header` | what identifies a process, as bytes | |
//! | `recorder` | starts, attaches threads, forgets after a fork | |
//! | `exit` | removes the file when the process exits | the C library calls back |
//! | `reader` | reads files, which may be hostile | |
//!
//! A reader may be root, and the file of any user: the reader maps no file, checks types, owners and sizes, and takes every
//! byte for possible garbage.

mod clock;
mod directory;
mod exit;
mod header;
mod map;
mod reader;
mod recorder;
mod ring;

pub use reader::{Dead, Event, Recording, for_each_running, of_process, parse};
pub use recorder::{file, forget_in_child, is_started, last_events, record, start};
pub use ring::{FILE_LEN, RECORDS, RINGS};
