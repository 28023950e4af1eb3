//! The checker (`ironwarp run --check`): finds mistakes of the program that this adapter forgives, or reports without
//! saying who made them. docs/check.md describes each.
//!
//! All other modules tell it what the program does, if it is on ([`active`]). It only observes: no call returns
//! anything else because of it, except that calls with destroyed objects fail instead of crashing.
//!
//! | file | for |
//! |---|---|
//! | `finding`, `stack` | kinds of findings; where the program made a call |
//! | `report`, `suppress`, `exit` | printing findings, and which are not printed; the exit code |
//! | `watch`, `memory`, `regions` | memory that the program frees; content of buffers; memory regions |
//! | `request`, `queues`, `pairs` | one request; completion queues; send and receive queues |
//! | `objects`, `lifetime` | objects that exist or existed; mistakes with them |
//! | `inside`, `checker` | the checker, and which threads are in it |
//! | `limits`, `device` | limits of devices, and what exceeds them |
//! | `posts` | posting, completions, and what they reveal |

mod checker;
mod device;
mod exit;
mod finding;
mod inside;
mod lifetime;
mod limits;
mod memory;
mod objects;
mod pairs;
mod posts;
mod queues;
mod regions;
mod report;
mod request;
mod stack;
mod start;
mod suppress;
mod watch;

pub(crate) use checker::{Checker, active};
pub(crate) use limits::Operation;
pub(crate) use pairs::Engine;
pub(crate) use posts::{Completed, PairAttributes};
pub(crate) use regions::{Element, Region};
pub(crate) use request::{Posted, Use};
pub(crate) use stack::Stack;
pub(crate) use start::start;
