//! The settings of the device. The engine adds its own settings, and reads all of them from the environment.

/// The table of device settings. Calls the macro `$define` with the rows of the table, followed by the other arguments.
///
/// A row starts with a label: `stable` or `experimental`. The engine's `Stability` says what they promise.
///
/// The engine defines its configuration from this table and its own, so that no setting is listed twice.
#[doc(hidden)]
#[macro_export]
macro_rules! device_settings {
    ($define:ident $($rest:tt)*) => {
        $define! {
            {
                /// Recognise other Ironwarp endpoints and use Ironwarp's private extensions with them. Turn this off for
                /// strict RFC behaviour on the wire, for example in conformance tests or behind a middlebox that rejects
                /// zero-length RDMA Writes.
                stable private: bool = true,
                /// Use Read V2 with other Ironwarp endpoints, so that a Read does not reveal where its data goes (requirement
                /// X4). If this is off at either end, or `private` is, Reads are ordinary ones, which name their sink.
                experimental read_v2: bool = true,
                /// Use Send with Immediate with other Ironwarp endpoints (requirement X8). If this is off at either end, or
                /// `private` is, such a request fails with a local error; Write with Immediate works with every peer.
                experimental send_immediate: bool = true,
                /// Terminate the stream when a message arrives and no receive is posted, as the RFC requires, instead of
                /// holding the message until one is. Useful to find missing receives.
                stable strict_receive: bool = false,
                /// Allow remote access through memory windows only, never through memory regions (requirement M9).
                stable strict_windows: bool = false,
                /// Request MPA CRCs, the RFC's default, because TCP's checksum is weak. Turn this off if the network already
                /// protects the data better.
                stable crc: bool = true,
                /// Ask peers to send MPA markers. This end does not need them, so they only add overhead; turn this on to
                /// test how a peer or a packet analyser handles them.
                stable markers: bool = false,
                /// Maximum number of incoming RDMA Reads outstanding on a queue pair (IRD), unless the connection negotiates
                /// another value.
                stable ird: u16 = 32,
                /// Maximum number of outgoing RDMA Reads outstanding on a queue pair (ORD), unless the connection negotiates
                /// another value.
                stable ord: u16 = 32,
                /// Maximum number of bytes of messages that wait for a receive before the stream stops reading from its
                /// socket. Raise this for programs that post receives late.
                experimental park: usize = 256 << 10,
                /// Maximum number of bytes of messages that wait for a receive, on all queue pairs of an adapter together. If
                /// it is reached, each stream keeps one segment at most until there is room.
                experimental parked: usize = 256 << 20,
                /// Maximum number of memory regions and windows.
                experimental tags: usize = 1 << 20,
                /// Timeout for an MPA startup frame, in either role. Hardware drivers wait up to 60 s, siw 5 s or 10 s.
                stable startup: ::std::time::Duration = ::std::time::Duration::from_secs(10),
                /// How long the peer may take to close a connection that this end has closed. The connection is reset
                /// afterwards.
                stable close: ::std::time::Duration = ::std::time::Duration::from_secs(5),
                /// Faults to inject, such as `split=0.2,cut@0.001`, to test how a program handles them.
                stable faults: $crate::fault::FaultPlan = $crate::fault::FaultPlan::default(),
                /// Seed of the random choices of fault injection. The same seed makes the same choices.
                stable seed: u64 = 0,
                /// Seed of the adversary, which makes the choices that the specifications leave to an adapter against the
                /// program, or `off`. The same seed makes the same choices. Connections stay on TCP. docs/adversary.md lists
                /// the choices.
                experimental adversary: $crate::adversary::AdversarySeed = $crate::adversary::AdversarySeed::default(),
            }
            $($rest)*
        }
    };
}

/// Defines [`DeviceConfig`] from the table.
macro_rules! define {
    ({ $($(#[doc = $doc:literal])+ $label:ident $name:ident: $type:ty = $default:expr,)* }) => {
        /// Settings of a device.
        #[derive(Clone, Debug, PartialEq)]
        pub struct DeviceConfig {
            $($(#[doc = $doc])+ pub $name: $type,)*
            /// Announce to Ironwarp peers that streams can be carried in shared memory. Not part of the table, because the
            /// links decide: the engine sets this if its links have this route.
            pub shared_memory: bool,
            /// Number of tags that an index of the memory table has before it is retired (requirement M4). Not part of the
            /// table: only the simulation has fewer than 256, so that indices retire soon.
            pub tag_instances: usize,
            /// The slots of the tag index that the memory table can use up. Not part of the table: an adapter has all of
            /// them until it gives some to a function. Fuzz targets have fewer, because they create devices often.
            pub tag_slots: ::std::ops::Range<u32>,
        }

        impl Default for DeviceConfig {
            fn default() -> Self {
                Self { $($name: $default,)* shared_memory: false, tag_instances: 256, tag_slots: 0..u32::MAX }
            }
        }
    };
}
device_settings!(define);
