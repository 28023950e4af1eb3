//! Functions: parts of an adapter with objects and quotas of their own (requirement X1).
//!
//! A function is an [`Adapter`] that shares the threads, sockets and buffers of the adapter in which it was created. Its
//! peers reach its own memory only, whatever tag they send, and its objects cannot be combined with those of another
//! function. A function that reaches a [quota](Quotas) gets an error that names it; the others notice nothing.

use crate::adapter::Adapter;
use crate::shared::Shared;
use std::io;
use std::sync::Arc;

mod moving;

pub use ironwarp_engine::{LeaveError, LeaveFailure, PairNotMovable, TakeInError};
pub use ironwarp_rnic::memory::RegionNotMovable;
pub use ironwarp_rnic::qp::NotMovable;
pub use ironwarp_rnic::quota::{QuotaExceeded, Quotas, Resource};
pub use moving::{Moving, NotMoved};

impl Adapter {
    /// Creates a function with these quotas: an adapter with objects of its own, which shares the threads of this one and
    /// keeps it open. [`shutdown`](Self::shutdown) of a function ends its own objects; that of this adapter ends all of
    /// its functions. Settings of lanes apply to all.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ironwarp::function::{Quotas, Resource};
    /// use ironwarp::prelude::*;
    ///
    /// let adapter = Adapter::new()?;
    /// let tenant = adapter.function(Quotas::default().queue_pairs(2).registered_bytes(1 << 20))?;
    /// let (cq, domain) = (tenant.completion_queue(64)?, tenant.protection_domain());
    /// let pairs = [domain.queue_pair(&cq).create()?, domain.queue_pair(&cq).create()?];
    /// let refused = domain.queue_pair(&cq).create().unwrap_err();
    /// assert!(refused.to_string().starts_with("function 1 has reached its quota of 2 queue pairs"));
    /// assert_eq!(tenant.used(Resource::QueuePairs), 2);
    /// # drop(pairs);
    ///
    /// // Objects of two functions cannot be combined.
    /// let other = adapter.function(Quotas::default())?;
    /// assert!(other.protection_domain().queue_pair(&cq).create().is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidInput`] if this adapter is a function itself. Fails, too, if too few tags are unused:
    /// a function takes 2¹⁸ of 2²⁴ indices, or as many as its quota of tags, and leaves those that it has not used to
    /// others when it ends.
    pub fn function(&self, quotas: Quotas) -> io::Result<Self> {
        let engine = self.shared.engine.create_function(quotas)?;
        Ok(Self { shared: Arc::new(Shared::of_engine(engine)) })
    }

    /// Returns the number of the function that this adapter is, as errors name it. Zero if it is not a function.
    ///
    /// ```
    /// # use ironwarp::function::Quotas;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!((adapter.function_number(), adapter.function(Quotas::default())?.function_number()), (0, 1));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn function_number(&self) -> u32 {
        self.shared.engine.function_number()
    }

    /// Returns the quotas of the function. The adapter itself has none.
    ///
    /// ```
    /// # use ironwarp::function::{Quotas, Resource};
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let function = adapter.function(Quotas::default().completion_queues(8))?;
    /// assert_eq!(function.quotas().get(Resource::CompletionQueues), 8);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn quotas(&self) -> &Quotas {
        self.shared.engine.quotas()
    }

    /// Returns how much of a kind of resource this adapter or function uses, without other functions. An object counts
    /// until its last handle is dropped, a connected queue pair until its connection is closed as well.
    ///
    /// ```
    /// # use ironwarp::function::Resource;
    /// # let adapter = ironwarp::Adapter::new()?;
    /// let cq = adapter.completion_queue(64)?;
    /// assert_eq!(adapter.used(Resource::CompletionQueues), 1);
    /// drop(cq);
    /// assert_eq!(adapter.used(Resource::CompletionQueues), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn used(&self, resource: Resource) -> u64 {
        self.shared.engine.used(resource)
    }
}
