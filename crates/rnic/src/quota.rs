//! Quotas: how much of each kind of resource the objects of one function may use (requirement X1).
//!
//! Each function has an [`Account`]. An object takes a [`Place`] in it, which gives the place back when the object is
//! dropped. Bytes are charged and released by the code that counts them. The data path charges nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of resource that a function has a quota of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// Queue pairs, connected or not, and control queues.
    QueuePairs,
    /// Completion queues.
    CompletionQueues,
    /// Shared receive queues.
    SharedReceiveQueues,
    /// Protection domains.
    ProtectionDomains,
    /// Memory regions and windows.
    Tags,
    /// Completion handlers, without the private ones of completion queues.
    CompletionHandlers,
    /// Event queues that the program has created.
    EventQueues,
    /// Bytes of registered memory. Memory that is registered twice counts twice.
    RegisteredBytes,
    /// Bytes of messages that wait for a receive.
    ParkedBytes,
}

/// Number of kinds.
const KINDS: usize = Resource::ALL.len();

impl Resource {
    /// All kinds.
    pub const ALL: [Self; 9] = [
        Self::QueuePairs,
        Self::CompletionQueues,
        Self::SharedReceiveQueues,
        Self::ProtectionDomains,
        Self::Tags,
        Self::CompletionHandlers,
        Self::EventQueues,
        Self::RegisteredBytes,
        Self::ParkedBytes,
    ];
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueuePairs => "queue pairs",
            Self::CompletionQueues => "completion queues",
            Self::SharedReceiveQueues => "shared receive queues",
            Self::ProtectionDomains => "protection domains",
            Self::Tags => "memory regions and windows",
            Self::CompletionHandlers => "completion handlers",
            Self::EventQueues => "event queues",
            Self::RegisteredBytes => "bytes of registered memory",
            Self::ParkedBytes => "bytes of messages that wait for a receive",
        })
    }
}

/// The quotas of a function, one for each [`Resource`]. By default there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "quotas have no effect until a function is created with them"]
pub struct Quotas([u64; KINDS]);

impl Default for Quotas {
    fn default() -> Self {
        Self([u64::MAX; KINDS])
    }
}

/// Defines a builder method for each kind.
macro_rules! quotas {
    ($($(#[doc = $doc:literal])+ $name:ident: $resource:ident,)*) => {
        impl Quotas {
            $(
                $(#[doc = $doc])+
                ///
                /// ```
                /// # use ironwarp_rnic::quota::{Quotas, Resource};
                #[doc = concat!("let quotas = Quotas::default().", stringify!($name), "(64);")]
                #[doc = concat!("assert_eq!(quotas.get(Resource::", stringify!($resource), "), 64);")]
                /// ```
                pub const fn $name(self, max: u64) -> Self {
                    self.with(Resource::$resource, max)
                }
            )*
        }
    };
}

quotas! {
    /// Limits the number of queue pairs, connected or not, and of control queues.
    queue_pairs: QueuePairs,
    /// Limits the number of completion queues.
    completion_queues: CompletionQueues,
    /// Limits the number of shared receive queues.
    shared_receive_queues: SharedReceiveQueues,
    /// Limits the number of protection domains.
    protection_domains: ProtectionDomains,
    /// Limits the number of memory regions and windows. The setting `tags` limits them as well.
    tags: Tags,
    /// Limits the number of completion handlers, without the private ones of completion queues. The adapter has a limit
    /// as well.
    completion_handlers: CompletionHandlers,
    /// Limits the number of event queues that the program creates.
    event_queues: EventQueues,
    /// Limits the number of bytes of registered memory. Memory that is registered twice counts twice.
    registered_bytes: RegisteredBytes,
    /// Limits the number of bytes of messages that wait for a receive. If it is reached, the adapter reads no more from
    /// the sockets of queue pairs with such messages.
    parked_bytes: ParkedBytes,
}

impl Quotas {
    /// Sets the quota of a kind.
    ///
    /// ```
    /// # use ironwarp_rnic::quota::{Quotas, Resource};
    /// let quotas = Quotas::default().with(Resource::QueuePairs, 16);
    /// assert_eq!(quotas, Quotas::default().queue_pairs(16));
    /// ```
    pub const fn with(mut self, resource: Resource, max: u64) -> Self {
        self.0[resource as usize] = max;
        self
    }

    /// Returns the quota of a kind: [`u64::MAX`] if there is none.
    ///
    /// ```
    /// # use ironwarp_rnic::quota::{Quotas, Resource};
    /// assert_eq!(Quotas::default().get(Resource::QueuePairs), u64::MAX);
    /// ```
    pub const fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }
}

/// A function has reached one of its quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "function {function} has reached its quota of {limit} {resource}: release some, or create the function with a larger quota"
)]
#[non_exhaustive]
pub struct QuotaExceeded {
    /// The number of the function.
    pub function: u32,
    /// The kind.
    pub resource: Resource,
    /// The quota.
    pub limit: u64,
}

impl From<QuotaExceeded> for std::io::Error {
    fn from(exceeded: QuotaExceeded) -> Self {
        Self::new(std::io::ErrorKind::QuotaExceeded, exceeded)
    }
}

/// What a function may use, and what it uses.
#[derive(Debug, Default)]
pub struct Account {
    /// The number of the function. Zero for the adapter itself.
    function: u32,
    quotas: Quotas,
    used: [AtomicU64; KINDS],
}

impl Account {
    /// Creates the account of a function, which uses nothing yet.
    pub fn new(function: u32, quotas: Quotas) -> Arc<Self> {
        Arc::new(Self { function, quotas, used: Default::default() })
    }

    /// Returns the number of the function. Zero for the adapter itself.
    pub fn function(&self) -> u32 {
        self.function
    }

    /// Returns the quotas.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns how much of a kind is in use. [`Resource::Tags`] is counted by the memory table.
    pub fn used(&self, resource: Resource) -> u64 {
        self.used[resource as usize].load(Ordering::Relaxed)
    }

    /// Takes a place for an object, if the quota allows one more.
    pub fn take(self: &Arc<Self>, resource: Resource) -> Result<Place, QuotaExceeded> {
        self.charge(resource, 1)?;
        Ok(Place { account: Arc::clone(self), resource })
    }

    /// Counts `amount` more, if the quota allows it.
    pub fn charge(&self, resource: Resource, amount: u64) -> Result<(), QuotaExceeded> {
        let limit = self.quotas.get(resource);
        // Without a quota, a region of the whole address space (implicit on-demand paging) may exceed 64 bits with others.
        let add = |used: u64| match used.checked_add(amount) {
            None if limit == u64::MAX => Some(used.wrapping_add(amount)),
            sum => sum.filter(|sum| *sum <= limit),
        };
        // Relaxed suffices: no other data depends on the count.
        let counted = self.used[resource as usize].fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        counted.map(drop).map_err(|_| self.exceeded(resource))
    }

    /// Counts `amount` less. It was charged before.
    pub fn release(&self, resource: Resource, amount: u64) {
        self.used[resource as usize].fetch_sub(amount, Ordering::Relaxed);
    }

    /// Returns the error for a quota that is reached.
    pub fn exceeded(&self, resource: Resource) -> QuotaExceeded {
        QuotaExceeded { function: self.function, resource, limit: self.quotas.get(resource) }
    }
}

/// The place of an object in the account of its function. Dropping it gives the place back.
#[derive(Debug)]
pub struct Place {
    account: Arc<Account>,
    resource: Resource,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.account.release(self.resource, 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_when_its_object_is_dropped() {
        let account = Account::new(3, Quotas::default().queue_pairs(2));
        let one = account.take(Resource::QueuePairs).unwrap();
        let _other = account.take(Resource::QueuePairs).unwrap();
        let refused = account.take(Resource::QueuePairs).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "function 3 has reached its quota of 2 queue pairs: release some, or create the function with a larger quota"
        );
        assert!(account.take(Resource::CompletionQueues).is_ok(), "another kind");
        drop(one);
        assert!(account.take(Resource::QueuePairs).is_ok());
        assert_eq!(account.used(Resource::QueuePairs), 1);
    }

    #[test]
    fn bytes_that_would_exceed_the_quota_are_not_counted() {
        let account = Account::new(1, Quotas::default().registered_bytes(100));
        account.charge(Resource::RegisteredBytes, 60).unwrap();
        for amount in [41, u64::MAX] {
            assert_eq!(account.charge(Resource::RegisteredBytes, amount).unwrap_err().limit, 100);
        }
        assert_eq!(account.used(Resource::RegisteredBytes), 60);
        account.charge(Resource::RegisteredBytes, 40).unwrap();
        account.release(Resource::RegisteredBytes, 100);
        assert_eq!(account.used(Resource::RegisteredBytes), 0);
    }

    #[test]
    fn without_a_quota_a_region_may_be_the_whole_address_space() {
        let account = Account::new(1, Quotas::default());
        for amount in [60, u64::MAX, 40] {
            account.charge(Resource::RegisteredBytes, amount).unwrap();
        }
        account.release(Resource::RegisteredBytes, u64::MAX);
        assert_eq!(account.used(Resource::RegisteredBytes), 100);
    }
}
