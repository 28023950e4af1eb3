//! Notification of the program about events: event channels and completion handlers.

pub(crate) mod blocking;
pub(crate) mod channel;
pub(crate) mod end;
pub(crate) mod handler;
pub(crate) mod sockets;
pub(crate) mod taking;
