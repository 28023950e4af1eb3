//! The files of a kernel driver that some programs look for (UCX, ibstat, scripts): `/dev/infiniband` and
//! `/sys/class/infiniband`. Functions of the C library that take a path are interposed. Paths below these prefixes are
//! *virtual*: the modules below replace them. All other paths are passed to the real function unchanged.
//!
//! ```text
//!  calls.rs      the interposed functions: call the real function, possibly with another path
//!  real.rs       finds the real function
//!  action.rs     decides what an interposed function does with a path
//!  paths.rs      makes a path absolute, from the current directory or one that is open
//!  map.rs        maps a virtual path to another path, a directory beside the library, or generated content
//!  tree.rs       the list of virtual files and directories
//!  content.rs    the content of virtual files
//!  directory.rs  reads virtual directories
//! ```
//! `tree.txt` lists all virtual files and directories. The directories exist on disk, beside the library, so that
//! programs can open and enter them. The files do not.

mod action;
mod calls;
mod content;
mod directory;
mod map;
mod paths;
mod real;
mod tree;

pub(crate) use real::real;
