//! Lanes: the threads, sockets, pollers and timers that drive the device over the kernel's TCP.
pub mod sys;
