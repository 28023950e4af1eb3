//! Parameters of a session: memory, receives and private data. Both ends use them.

use ironwarp::connection::MpaMode;

/// Parameters of a session, the same for both ends, unless its steps say otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Halves of the main region: the first is written by the other end, the second is read.
    pub(crate) half: usize,
    pub(crate) receives: usize,
    pub(crate) receive: usize,
    pub(crate) srq: bool,
    /// Length of the private data.
    pub(crate) private: usize,
    pub(crate) private_of_siw: usize,
    pub(crate) setup: MpaMode,
    /// The server closes the connection, instead of the client.
    pub(crate) server_closes: bool,
    /// Ironwarp posts only one receive.
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
            setup: MpaMode::PeerToPeer,
            server_closes: false,
            few: false,
        }
    }
}
