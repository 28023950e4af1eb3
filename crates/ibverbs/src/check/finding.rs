//! The kinds of findings.

use super::stack::Stack;

/// Defines [`Kind`] with the names by which reports and suppressions refer to its values.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal $severity:ident,)*) => {
        /// A mistake that the checker recognises.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// Returns the name.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// All kinds.
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$kind),*];

            /// Returns how severe it is.
            pub(crate) fn severity(self) -> Severity {
                match self { $(Self::$kind => Severity::$severity,)* }
            }
        }
    };
}

/// Whether the program is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// A mistake: another adapter, or another run, may fail or corrupt data.
    Finding,
    /// Allowed, but worth knowing. Does not change the exit code.
    Remark,
}

kinds! {
    /// The data of a request changed before the request completed.
    SendBufferChanged = "send-buffer-changed" Finding,
    /// Data of a posted receive, or of a Read under way, was read before its completion.
    ReceiveBufferReadEarly = "receive-buffer-read-early" Finding,
    /// The program wrote to the buffer of a posted receive.
    ReceiveBufferWritten = "receive-buffer-written" Finding,
    /// A memory region was deregistered while a request used it.
    RegionDeregisteredInUse = "region-deregistered-in-use" Finding,
    /// Memory was freed while a request used it.
    MemoryFreedInUse = "memory-freed-in-use" Finding,
    /// Memory was unmapped while a request used it.
    MemoryUnmappedInUse = "memory-unmapped-in-use" Finding,
    /// Memory was unmapped and mapped again behind a registration that a request then used.
    StaleRegistration = "stale-registration" Finding,
    /// A request names memory that was freed.
    UseAfterFree = "use-after-free" Finding,
    /// The target of an atomic operation is not aligned to eight bytes.
    MisalignedAtomic = "misaligned-atomic" Finding,
    /// A request needs rights that its memory region lacks, here or at the peer.
    MissingRights = "missing-rights" Finding,
    /// A request names an unknown key, a range outside of the region, or a region of another domain.
    BadMemoryKey = "bad-memory-key" Finding,
    /// More completions are possible than the completion queue holds.
    CqMayOverrun = "cq-may-overrun" Finding,
    /// Messages waited until the program posted a receive.
    WaitedForReceive = "waited-for-receive" Remark,
    /// A send queue is full, and none of its requests is signaled.
    SendQueueUnsignaled = "send-queue-unsignaled" Finding,
    /// An object waits for events that the program took and did not acknowledge.
    UnacknowledgedEvents = "unacknowledged-events" Finding,
    /// A request was posted to a queue pair of which the program knows that it cannot execute requests.
    PostInErrorState = "post-in-error-state" Finding,
    /// An object was not destroyed.
    Leak = "leak" Remark,
    /// An object was to be destroyed on which others depend.
    DestroyBusy = "destroy-busy" Finding,
    /// A queue pair was destroyed before its requests ended, and they did not end.
    DestroyWithRequests = "destroy-with-requests" Finding,
    /// A queue pair was destroyed before its requests ended, and they ended soon after.
    DestroyBeforeCompletion = "destroy-before-completion" Remark,
    /// A call names an object that was destroyed.
    UseAfterDestroy = "use-after-destroy" Finding,
    /// A forked child uses an object of its parent.
    UseAfterFork = "use-after-fork" Finding,
    /// More memory is registered than RLIMIT_MEMLOCK would allow hardware to pin.
    MemlockLimit = "memlock-limit" Remark,
    /// A device that the program is checked for does not support this.
    DeviceLimit = "device-limit" Finding,
}

/// A mistake, with what is known about it.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    /// What happened, with object and request id.
    pub(crate) text: String,
    /// The calls that matter: what each did, and where the program made it. The first is the call that made the mistake.
    pub(crate) calls: Vec<(&'static str, Stack)>,
}

impl Finding {
    /// A finding whose mistake is the call that the program makes now.
    pub(crate) fn now(kind: Kind, text: String) -> Self {
        Self { kind, text, calls: vec![("called", Stack::capture())] }
    }

    /// A finding whose mistake is a post.
    pub(crate) fn posted(kind: Kind, text: String, stack: &Stack) -> Self {
        Self { kind, text, calls: vec![("posted", stack.clone())] }
    }

    /// Adds an earlier call.
    pub(crate) fn after(mut self, what: &'static str, stack: &Stack) -> Self {
        self.calls.push((what, stack.clone()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_row_for_each_kind() {
        let page = include_str!("../../../../docs/check.md");
        for kind in Kind::ALL {
            let name = match kind.severity() {
                Severity::Finding => format!("`{}`", kind.name()),
                Severity::Remark => format!("`{}` (remark)", kind.name()),
            };
            let is_limit = *kind == Kind::DeviceLimit; // has a section
            assert!(
                is_limit || page.contains(&format!("\n| {name} |")),
                "docs/check.md has no row for {name}"
            );
        }
    }
}
