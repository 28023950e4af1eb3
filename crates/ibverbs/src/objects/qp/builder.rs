//! Requests that are being built by the extended calls of a queue pair.

use crate::support::errno::Errno;
use ironwarp_rnic::datagram::Destination;
use ironwarp_rnic::queue::{Data, WorkRequest};

/// The requests since the last start.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) requests: Vec<WorkRequest>,
    /// The destination of each request of a UD queue pair.
    pub(crate) destinations: Vec<Option<Destination>>,
    pub(crate) wrong: Option<Errno>,
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.destinations.clear();
        self.wrong = None;
    }

    /// Keeps the first error, which the completion returns.
    pub(crate) fn note<T>(&mut self, result: Result<T, Errno>) -> Option<T> {
        result.map_err(|errno| self.wrong = self.wrong.or(Some(errno))).ok()
    }

    /// Changes the request that is being built. It is an error if there is none.
    pub(crate) fn last(&mut self, change: impl FnOnce(&mut WorkRequest)) {
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.wrong = self.wrong.or(Some(Errno::INVALID)),
        }
    }

    pub(crate) fn set_data(&mut self, data: Result<Data, Errno>) {
        if let Some(data) = self.note(data) {
            self.last(|request| request.data = data);
        }
    }
}
