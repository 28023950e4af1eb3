//! What all other modules build on.
//!
//! | file | for |
//! |---|---|
//! | `sync`, `turn` | locks; sequences of calls that one thread makes at a time |
//! | `cancel` | protection from `pthread_cancel` |
//! | `persona` | the settings, and the kind of adapter that programs see |
//! | `stderr`, `report` | the log on standard error |
//! | `errno` | how a C caller learns that a call failed |
//! | `object` | the table of live objects |
//! | `sockaddr` | addresses of C |
//! | `wake` | descriptors to wait on |
//! | `exit` | the end of the process |

pub(crate) mod cancel;
pub(crate) mod errno;
pub(crate) mod exit;
pub(crate) mod object;
pub(crate) mod persona;
pub(crate) mod report;
pub(crate) mod sockaddr;
mod stderr;
pub(crate) mod turn;
pub(crate) mod wake;
