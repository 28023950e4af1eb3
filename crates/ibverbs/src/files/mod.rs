//! The files of a kernel driver that some programs look for (UCX, scripts): `/dev/infiniband` and `/sys/class/infiniband`.
//! Functions of the C library that take a path are put in front of the real ones; whatever is not below these two prefixes
//! goes on to them untouched.
//!
//! ```text
//!  calls.rs   the functions: path → map → the real function, with another path
//!  map.rs     what stands for a path: another path, or a text
//!  text.rs    files whose contents depend on this host
//! ```
//! Files whose contents are always the same, and folders, are in the folder `tree` beside the library.

mod calls;
mod map;
mod text;
