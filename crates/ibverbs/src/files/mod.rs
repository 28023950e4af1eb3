//! The files of a kernel driver that some programs look for (UCX, ibstat, scripts): `/dev/infiniband` and
//! `/sys/class/infiniband`. Functions of the C library that take a path are interposed. Paths that are not below these
//! two prefixes are passed on untouched.
//!
//! ```text
//!  calls.rs      the functions: path → answer → the real function, with another path
//!  real.rs       finding the real function
//!  answer.rs     what to do with a path: path → paths → map
//!  paths.rs      resolves a path, from the current directory or one that is open
//!  map.rs        what takes the place of a path: another path, a directory beside the library, generated content
//!  tree.rs       the list of files and directories
//!  content.rs    the content of the files
//!  directory.rs  reading directories
//! ```
//! `tree.txt` lists all files and directories. The directories exist beside the library, so that programs can open and
//! enter them. The files do not.

mod answer;
mod calls;
mod content;
mod directory;
mod map;
mod paths;
mod real;
mod tree;

pub(crate) use real::real;
