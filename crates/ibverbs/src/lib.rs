//! Drop-in for libibverbs and librdmacm: their C interface over Ironwarp's adapter.
//!
//! Programs that were built against rdma-core's headers find the functions of both libraries here, and the structures that
//! inline functions of those headers reach into. `cargo xtask dropin` links this crate into the one shared file that
//! they load. C callers are untrusted: what the interface lets one detect is answered with the documented errno, and
//! nothing panics across it.
//!
//! | file | for |
//! |---|---|
//! | [`abi`] | structures, constants and function tables, as the headers lay them out |

pub mod abi;
