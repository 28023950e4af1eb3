//! Requests that a program is building by the extended calls of a queue pair (`wr_start` to `wr_complete`).

use crate::support::errno::Errno;
use ironwarp_rnic::datagram::Destination;
use ironwarp_rnic::queue::{Data, WorkRequest};

/// The requests that the program has built since `wr_start`, and the first error.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) requests: Vec<WorkRequest>,
    /// The destination of each request, which only UD queue pairs use. `None` until the program sets it.
    pub(crate) destinations: Vec<Option<Destination>>,
    /// The first error since `wr_start`, which `wr_complete` returns.
    pub(crate) error: Option<Errno>,
}

impl Builder {
    /// Discards all requests and the error.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.destinations.clear();
        self.error = None;
    }

    /// Returns the value of a result. If the result is an error and the first one, records it.
    pub(crate) fn record_error<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        result.map_err(|errno| self.error = self.error.or(Some(errno))).ok()
    }

    /// Changes the last request, which is the one that the program is building. Records an error if there is none.
    pub(crate) fn change_last(&mut self, change: impl FnOnce(&mut WorkRequest)) {
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.error = self.error.or(Some(Errno::INVALID)),
        }
    }

    /// Sets the data of the last request, or records the error.
    pub(crate) fn set_data(&mut self, data: Result<Data, Errno>) {
        if let Some(data) = self.record_error(data) {
            self.change_last(|request| request.data = data);
        }
    }
}
