//! The address (tag and offset) in messages that access no memory.

use ironwarp_wire::{RemoteAddr, Tag};

/// The address in a message without payload. The receiver must not check it (RFC 5041 §5.2), but hardware might treat
/// tag 0 specially: siw, cxgb4 and irdma all send a nonzero tag in such messages.
pub(crate) const UNUSED_ADDR: RemoteAddr = RemoteAddr { tag: Tag(1), offset: 0 };
