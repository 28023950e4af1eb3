//! What siw cannot do, and how it fails. If it suddenly works, that is a failure as well, because
//! docs/interop.md is then wrong.

use super::guest::{ADDRESS, PORT};
use super::testbed::{Testbed, fill};
use crate::shell::Result;

pub(super) const NAME: &str = "rping over revision 1";

/// MPA revision 1 does not transfer IRD and ORD, and siw then assumes 0 for both (`siw_accept`). rping's
/// server begins with an RDMA Read, which siw refuses to post. With Ironwarp at the other end it works: as a
/// client it speaks revision 2, which siw answers in kind, and as a server it uses depths of its own for a
/// peer that names none.
pub(super) fn read_over_revision_1(testbed: &mut Testbed) -> Result {
    let words = |role| fill(&["rping", role, "-a", "{addr}", "-p", "{port}", "-C", "1", "-V"], ADDRESS, PORT);
    testbed.guest.serve(&words("-s"))?;
    let client = testbed.guest.program(&words("-c"))?;
    let server = testbed.guest.served()?;
    if server.code == 255 && server.output.contains("post send error -1") {
        Ok(())
    } else {
        Err(format!("siw did not refuse the Read\n    server {server}\n    client {client}"))
    }
}
