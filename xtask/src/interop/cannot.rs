//! What siw cannot do, and how that shows. Should it suddenly work, that is a failure too: then docs/interop.md is wrong.

use super::guest::{ADDRESS, PORT};
use super::stage::{Stage, fill};
use crate::shell::Result;

pub(super) const NAME: &str = "rping over revision 1";

/// MPA revision 1 has no IRD and ORD on the wire, and siw takes both for 0 (`siw_accept`). rping's server begins with an RDMA
/// Read, which siw then refuses to post. With Ironwarp at the other end it works: as a client it speaks revision 2, which siw
/// answers in kind, and as a server it has depths of its own for a peer that names none.
pub(super) fn read_over_revision_1(stage: &mut Stage) -> Result {
    let words = |role| fill(&["rping", role, "-a", "{addr}", "-p", "{port}", "-C", "1", "-V"], ADDRESS, PORT);
    stage.guest.serve(&words("-s"))?;
    let client = stage.guest.program(&words("-c"))?;
    let server = stage.guest.served()?;
    if server.code == 255 && server.output.contains("post send error -1") {
        Ok(())
    } else {
        Err(format!("siw was thought not to post a Read\n    server {server}\n    client {client}"))
    }
}
