//! The task that passes the completions of a completion queue to the futures that wait for them.

use super::buffers::{Buffers, Held};
use super::error::{Error, Refused};
use super::posted::Posted;
use super::table::{Changed, Table, Waiter};
use crate::completion::CompletionQueue;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle as Runtime;
use ironwarp_rnic::error::PostError;
use ironwarp_rnic::event::Wake;
use ironwarp_rnic::queue::{Arm, Sge};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;

/// Maximum number of completions that the task takes before it lets other tasks run.
const BATCH: usize = 64;

/// Drives a completion queue: a task of the runtime takes its completions, and wakes the futures of the requests.
/// Clones are handles to the same driver.
///
/// Any number of queue pairs can use one driver; [`create`](Self::create) creates them. The driver makes the completion
/// queue larger if there would be too little room for all outstanding requests, so the queue does not overflow. Do not
/// poll or arm a completion queue that has a driver, and post no requests that complete on it by other means: the
/// driver discards their completions.
///
/// The task ends when all handles and queue pairs are dropped, their connections are closed, and all requests have
/// completed. If the runtime shuts down before, or the adapter stops, all requests fail.
///
/// ```
/// # use ironwarp::Adapter;
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// use ironwarp::tokio::Driver;
///
/// let adapter = Adapter::new()?;
/// let driver = Driver::new(adapter.completion_queue(64)?)?;
/// let qp = driver.create(adapter.protection_domain().queue_pair(driver.cq()))?;
/// # let _ = qp;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Driver {
    handle: Arc<Handle>,
}

/// What the handles of a driver share. The task ends after it was dropped.
struct Handle {
    table: Arc<Table>,
    cq: CompletionQueue,
}

impl Driver {
    /// Starts a driver for a completion queue, as a task of the current runtime.
    ///
    /// ```
    /// # use ironwarp::Adapter;
    /// use ironwarp::tokio::Driver;
    ///
    /// let cq = Adapter::new()?.completion_queue(64)?;
    /// assert!(Driver::new(cq.clone()).is_err(), "there is no runtime");
    ///
    /// let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    /// let driver = runtime.block_on(async { Driver::new(cq) })?;
    /// # let _ = driver;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails outside of a runtime, and if the descriptor of the completion queue cannot be registered with the runtime,
    /// for example because another driver has it.
    ///
    /// # Panics
    /// Panics if the runtime was built without `enable_io`.
    pub fn new(cq: CompletionQueue) -> io::Result<Self> {
        let runtime = Runtime::try_current().map_err(io::Error::other)?;
        cq.set_handler(cq.own_handler());
        let table = Arc::new(Table::new(&cq));
        let stop: Arc<dyn Wake> = Arc::<Changed>::clone(&table.changed);
        cq.shared.device().events().add_stop_wake(&stop);
        #[allow(deprecated, reason = "its replacement in new versions is unsafe, and does the same")]
        let fd = AsyncFd::new(cq.clone())?;
        let handle = Arc::new(Handle { table: Arc::clone(&table), cq });
        runtime.spawn(run(fd, Arc::downgrade(&handle), EndGuard { table, error: Error::RuntimeShutDown }));
        Ok(Self { handle })
    }

    /// Returns the completion queue, to create queue pairs with it.
    pub fn cq(&self) -> &CompletionQueue {
        &self.handle.cq
    }

    /// Returns the table of requests.
    pub(super) fn table(&self) -> &Arc<Table> {
        &self.handle.table
    }

    /// Posts a request with buffers, to this queue pair or, with `None`, to a shared receive queue. `post` gets the
    /// identifier of the request and its scatter/gather list.
    pub(super) fn post<B: Buffers>(
        &self,
        qp: Option<u32>,
        buffers: B,
        post: impl FnOnce(u64, &[Sge]) -> Result<(), PostError>,
    ) -> Result<Posted<B>, Refused<B>> {
        let list = buffers.list();
        // The request needs its slot before it is posted, because it may complete at once.
        let inserted = self.table().insert(self.cq(), qp, buffers.into_held(), Waiter::Future(None));
        let (error, held) = match inserted {
            Err(refused) => refused,
            Ok(id) => match post(id, list.as_slice()) {
                Ok(()) => return Ok(Posted::new(self.table(), id)),
                Err(error) => match self.table().remove(id) {
                    // The driver has ended meanwhile, and has released the buffers: the future reports that.
                    None | Some((Held::Released, _)) => return Ok(Posted::new(self.table(), id)),
                    Some((held, _)) => (error.into(), held),
                },
            },
        };
        let buffers = B::from_held(held).expect("the buffers that the request was to be posted with");
        Err(Refused { error, buffers })
    }
}

/// The task of a driver.
async fn run(cq: AsyncFd<CompletionQueue>, handle: Weak<Handle>, mut guard: EndGuard) {
    let table = Arc::clone(&guard.table);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        match cq.get_ref().poll(&mut batch, BATCH) {
            Ok(0) => {}
            Ok(_) => {
                table.complete(&mut batch);
                // The tasks that were woken run first: they may post requests that complete at once.
                ::tokio::task::yield_now().await;
                continue;
            }
            Err(overrun) => {
                guard.error = Error::Overrun(overrun);
                return;
            }
        }
        if cq.get_ref().shared.device().events().is_stopped() {
            guard.error = Error::AdapterStopped;
            return;
        }
        if handle.strong_count() == 0 && table.is_idle() {
            return;
        }
        // If a completion arrived between polling and arming, there is no event for it.
        if !cq.get_ref().arm(Arm::Next) && wait(&cq, &table.changed).await.is_err() {
            return;
        }
    }
}

/// Waits for the event of an armed completion queue, or for a change that the task has to check. Fails if the runtime
/// shuts down.
async fn wait(cq: &AsyncFd<CompletionQueue>, changed: &Changed) -> io::Result<()> {
    let mut changed = pin!(changed.0.notified());
    poll_fn(|context| {
        if let Poll::Ready(ready) = cq.poll_read_ready(context) {
            // Cleared first, so that an event after this is not missed.
            ready?.clear_ready();
            cq.get_ref().take_event();
            return Poll::Ready(Ok(()));
        }
        changed.as_mut().poll(context).map(Ok)
    })
    .await
}

/// Ends the table when the task ends: when it returns, panics, or is dropped because the runtime shuts down.
struct EndGuard {
    table: Arc<Table>,
    /// Why it ends.
    error: Error,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.table.end(self.error.clone());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.table.changed.signal(); // the task may not be needed any more
    }
}

// Not derived: omits the requests, which may be many.
impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("cq", &self.handle.cq).finish_non_exhaustive()
    }
}
