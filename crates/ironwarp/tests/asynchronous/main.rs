//! The module `tokio` of the native API: connections and requests as futures.
#![allow(clippy::unwrap_used, reason = "a test")]

mod cancel;
mod end;
mod requests;

use ironwarp_testkit::native::SOON;

/// Runs a test in a runtime with one thread, and waits until the drivers have ended.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(6 * SOON, test).await.expect("in time");
        while runtime.metrics().num_alive_tasks() > 0 {
            tokio::time::timeout(SOON, tokio::task::yield_now()).await.expect("the drivers end");
        }
    });
}
