//! The files of a kernel driver that some programs look for (UCX, ibstat, scripts): `/dev/infiniband`,
//! `/sys/class/infiniband`, and the directories of the devices in `/sys/devices`. Functions of the C library that take a
//! path are interposed. Paths below these prefixes are *virtual*: the modules below replace them. All other paths are
//! passed to the real function unchanged.
//!
//! ```text
//!  calls.rs      the interposed functions: call the real function, possibly with another path
//!  real.rs       finds the real function
//!  action.rs     decides what an interposed function does with a path
//!  paths.rs      makes a path absolute, from the current directory or one that is open
//!  map.rs        maps a virtual path to another path, a directory beside the library, or generated content
//!  tree.rs       the virtual files and directories of the devices of this process
//!  place.rs      the device and port that a virtual path belongs to
//!  list.rs       the list of virtual files and directories
//!  content.rs    the content of virtual files
//!  directory.rs  reads virtual directories
//! ```
//! `tree.txt` lists all virtual files and directories, with placeholders for devices and ports. The directories exist on
//! disk, beside the library, so that programs can open and enter them: those of as many devices and ports as there can
//! be. The files do not.

mod action;
mod calls;
mod content;
mod directory;
mod list;
mod map;
mod paths;
mod place;
mod real;
mod tree;

pub(crate) use real::real;
