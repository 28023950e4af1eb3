//! What a session tells its driver to do.

use super::channel::Channel;
use super::error::Reason;
use crate::message::{Attach, Mac, Nonce, Reply, SEND_DATA_HEADER};

/// An instruction to the driver. Execute them in the order in which they come.
///
/// Each `Post`, `SendFrame` and `Write` is one request on its channel: call
/// [`Session::completed`](super::Session::completed) once when it completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Post {
        /// The channel.
        channel: Channel,
        /// The whole message.
        message: Vec<u8>,
    },
    /// Send this header and the frame behind it, as one message on the data channel. A driver that leaves room for the
    /// header before each frame can send both from one buffer.
    SendFrame {
        /// The frame, as passed to [`Session::send`](super::Session::send).
        frame: u64,
        /// The bytes before the frame.
        header: [u8; SEND_DATA_HEADER],
    },
    /// Write the frame to memory of the peer, on the data channel.
    Write {
        /// The frame, as passed to [`Session::send`](super::Session::send).
        frame: u64,
        /// Tag of the destination.
        tag: u32,
        /// Offset of the destination.
        offset: u64,
        /// Immediate data. Without it, the message that indicates the Write is the next action.
        immediate: Option<u32>,
    },
    /// Allocate and register memory of `count` × `element_size` bytes, in the protection domain of this session and, in
    /// RDMA mode, for remote writes. Then call [`Session::pool_registered`](super::Session::pool_registered) or
    /// [`Session::pool_failed`](super::Session::pool_failed).
    RegisterPool {
        /// Index of the pool.
        pool: u32,
        /// Number of elements.
        count: u32,
        /// Size of each element.
        element_size: u32,
    },
    /// Deregister and free the memory of a pool.
    DeregisterPool {
        /// Index of the pool.
        pool: u32,
    },
    /// Post this element as a receive of the data channel. Only in Send mode.
    PostReceive {
        /// Index of the pool.
        pool: u32,
        /// Element in the pool.
        element: u32,
    },
    /// Pass a frame to the application.
    Deliver(Frame),
    /// Check this Attach with [`Registry::attach`](crate::auth::Registry::attach), then call
    /// [`Session::admit`](super::Session::admit) or [`Session::refuse`](super::Session::refuse). Only at the unit.
    Authenticate {
        /// The request.
        attach: Box<Attach>,
        /// The nonce that it answers.
        nonce: Nonce,
    },
    /// Connect the data channel, then call [`Session::data_connected`](super::Session::data_connected). Only at the
    /// host.
    ConnectData,
    /// Frames can be sent from now on.
    Up,
    /// The peer has room again, after [`Session::ready`](super::Session::ready) or
    /// [`Session::send`](super::Session::send) said that it has none.
    Resume,
    /// The answer to [`Session::request`](super::Session::request).
    Answer {
        /// What `request` returned.
        context: u64,
        /// The answer.
        reply: Reply,
    },
    /// The host has another MAC address. Only at the unit.
    SetMac(Mac),
    /// Close both connections, after what was posted to the control channel. Frames that have not completed are lost.
    /// Only then execute the actions that follow.
    Disconnect(Reason),
}

/// A frame that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// In an element of a local pool: call [`Session::release`](super::Session::release) when done with it.
    Element {
        /// Index of the pool.
        pool: u32,
        /// Element in the pool.
        element: u32,
        /// Offset of the frame in the element.
        offset: u32,
        /// Length of the frame.
        len: u32,
    },
    /// Inside a message.
    Inline(Vec<u8>),
}
