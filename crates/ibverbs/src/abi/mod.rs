//! The ABI of rdma-core's headers: structures, function tables, constants.
//!
//! Names are those of C, and the manual pages describe them. Layouts and values are those of rdma-core 65 on 64-bit
//! Linux, which extends older releases. `tests/layout` compares all of them with the real headers. C enumerations are
//! integers here: a C caller may store any value in one, and such a value in a Rust enumeration is undefined behaviour.
//!
//! | file | for |
//! |---|---|
//! | `codes` | enumerations whose values exclude each other: states, statuses, opcodes |
//! | `flags` | enumerations whose values are bits |
//! | `device` | attributes of devices and ports |
//! | `attr` | attributes of objects |
//! | `work` | work requests, completions, events |
//! | `verbs` | objects that programs hold pointers to: regions, queues, queue pairs, their tables |
//! | `context` | devices, contexts and the two operation tables |
//! | `flow` | packet steering, which is not supported; its types complete the tables |
//! | `sa` | records of InfiniBand's subnet administration that ids of librdmacm contain |
//! | `kern` | structures of the kernel that a few functions convert |
//! | `cm` | librdmacm |
//! | `zeroed` | creating structures of zero bytes |

#![allow(non_camel_case_types, non_snake_case, reason = "names as in C")]

mod attr;
mod cm;
mod codes;
mod context;
mod device;
mod flags;
mod flow;
mod kern;
mod sa;
mod verbs;
mod work;
mod zeroed;

pub use attr::*;
pub use cm::*;
pub use codes::*;
pub use context::*;
pub use device::*;
pub use flags::*;
pub use flow::*;
pub use kern::*;
pub use sa::*;
pub use verbs::*;
pub use work::*;
pub use zeroed::Zeroed;

/// Declares C enumerations, each as an integer type with constants, and a list of all these constants for the
/// layout test.
macro_rules! c_enums {
    ($list:ident; $($(#[$doc:meta])* $name:ident: $int:ty { $($constant:ident = $value:expr,)* })*) => {
        $(
            $(#[$doc])*
            pub type $name = $int;
            $(pub const $constant: $name = $value;)*
        )*
        /// Every constant of this file, by name.
        pub const $list: &[(&str, i128)] = &[$($((stringify!($constant), $constant as i128),)*)*];
    };
}
pub(crate) use c_enums;

/// Implements `Debug` by printing only the name. For unions, of which the valid member is unknown, and structures with
/// fields that lack `Debug`.
macro_rules! opaque_debug {
    ($($name:ident),* $(,)?) => {
        $(impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}
pub(crate) use opaque_debug;
