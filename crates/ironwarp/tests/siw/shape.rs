//! How a session begins: its memory, its receives, its private data. `session.rs` tells siw, `end.rs` does the same here.

use ironwarp::Setup;

/// How a session begins: the same for both ends, unless its steps say otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Of the main region: the first is for the other end to write, the second for it to read.
    pub(crate) half: usize,
    pub(crate) receives: usize,
    pub(crate) receive: usize,
    pub(crate) srq: bool,
    /// Bytes of private data.
    pub(crate) private: usize,
    pub(crate) private_of_siw: usize,
    pub(crate) setup: Setup,
    /// The server closes the connection, not the client.
    pub(crate) server_parts: bool,
    /// Ironwarp posts one receive, and no more.
    pub(crate) few: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            half: 65536,
            receives: 6,
            receive: 256,
            srq: false,
            private: 19,
            private_of_siw: 19,
            setup: Setup::PeerToPeer,
            server_parts: false,
            few: false,
        }
    }
}
