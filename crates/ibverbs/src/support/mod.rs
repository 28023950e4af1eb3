//! Helpers that all other modules of this crate use.
//!
//! | file | for |
//! |---|---|
//! | `turn` | sequences of calls that one thread makes at a time |
//! | `acknowledge` | waiting until the program acknowledges events |
//! | `cancel` | protection from `pthread_cancel` |
//! | `clock` | clocks of the system |
//! | `persona` | the settings, and the kind of adapter that programs see |
//! | `stderr`, `report` | the log on standard error, and its messages |
//! | `errno` | error codes, and how each kind of C function returns them |
//! | `object` | the table of live objects |
//! | `sockaddr` | conversion of socket addresses |
//! | `wake` | descriptors of event channels |
//! | `exit` | closing connections when the process exits |

pub(crate) mod acknowledge;
pub(crate) mod cancel;
pub(crate) mod clock;
pub(crate) mod errno;
pub(crate) mod exit;
pub(crate) mod object;
pub(crate) mod persona;
pub(crate) mod report;
pub(crate) mod sockaddr;
mod stderr;
pub(crate) mod turn;
pub(crate) mod wake;
