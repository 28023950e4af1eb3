//! The files of a kernel driver that some programs look for (UCX, ibstat, scripts): `/dev/infiniband` and
//! `/sys/class/infiniband`. Functions of the C library that take a path are put in front of the real ones; whatever is not
//! below these two prefixes goes on to them untouched.
//!
//! ```text
//!  calls.rs   the functions: path → place → map → the real function, with another path
//!  place.rs   which path is meant, by the current folder or one that is open
//!  map.rs     what stands for a path: another path, a folder beside the library, a text
//!  tree.rs    which files and folders there are
//!  text.rs    what is in the files
//!  folder.rs  reading folders
//! ```
//! `tree.txt` lists all files and folders. The folders are there, beside the library, so that programs can open and enter
//! them; the files are not.

mod calls;
mod folder;
mod map;
mod place;
mod text;
mod tree;

pub(crate) use calls::real;
