//! The future of a posted request.

use super::buffers::Buffers;
use super::error::{Error, Failed};
use super::table::Table;
use ironwarp_rnic::queue::Completion;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A request that was posted: a future of its completion, and of its buffers.
///
/// Dropping the future does not cancel the request. The request keeps its buffers until it completes; then they return
/// to their pool. So a program that does not care when a Send completes drops the future at once.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # ironwarp::example::run_async(async |client, server| {
/// # let receives = server.qp.receive_queue(server.chunks(4))?;
/// let mut chunk = client.pool.take().expect("a free chunk");
/// chunk.set_len(5)?;
/// chunk.write(0, b"hello")?;
/// let (_completion, mut chunk) = client.qp.send(chunk)?.await?;
///
/// chunk.write(0, b"again")?;
/// drop(client.qp.send(chunk)?); // it is sent all the same
/// # for text in [b"hello", b"again"] {
/// #     assert_eq!(receives.recv().await?.expect("a message").chunk().to_vec()?, text);
/// # }
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "await the future, or drop it explicitly: the request is posted already"]
pub struct Posted<B> {
    table: Arc<Table>,
    /// The identifier of the request; `None` after its completion was taken.
    id: Option<u64>,
    buffers: PhantomData<fn() -> B>,
}

impl<B> Posted<B> {
    pub(super) fn new(table: &Arc<Table>, id: u64) -> Self {
        Self { table: Arc::clone(table), id: Some(id), buffers: PhantomData }
    }
}

impl<B: Buffers> Future for Posted<B> {
    type Output = Result<(Completion, B), Failed<B>>;

    /// # Panics
    /// Panics if the future has returned its result before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.id.expect("polled after completion");
        let result = ready!(self.table.poll(id, context.waker()));
        self.id = None;
        let (completion, held) = result.map_err(|error| Failed { error, buffers: None })?;
        let buffers = B::from_held(held);
        Poll::Ready(match (completion.success(), buffers) {
            (Ok(completion), Some(buffers)) => Ok((completion, buffers)),
            (Err(error), buffers) => Err(Failed { error: Error::Request(error), buffers }),
            (Ok(_), None) => unreachable!("a request completes with the buffers that it was posted with"),
        })
    }
}

impl<B> Drop for Posted<B> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.table.abandon(id);
        }
    }
}

impl<B> fmt::Debug for Posted<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted").field("id", &self.id).finish_non_exhaustive()
    }
}
