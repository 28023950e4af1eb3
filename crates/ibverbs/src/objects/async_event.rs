//! Asynchronous events, which report changes of objects that no completion reports. The program acknowledges each
//! event, and destroying an object waits until all its events are acknowledged.

use crate::abi::*;
use crate::support::acknowledge::wait_until_acknowledged;
use crate::support::wake::ChannelWake;
use ironwarp_engine::Engine;
use ironwarp_rnic::event::AsyncEvent;
use ironwarp_rnic::sync::lock;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once};

/// Delivers the asynchronous events of a context.
#[derive(Debug)]
pub(crate) struct AsyncEventPort {
    engine: Arc<Engine>,
    /// The descriptor that the program waits on (`async_fd`).
    wake: ChannelWake,
    /// The objects that events can be about.
    objects: Mutex<HashMap<Subject, EventCount>>,
    /// Signalled when the program acknowledges an event.
    acknowledged: Condvar,
    /// Completed when events of the port are enabled.
    port_watched: Once,
}

/// The object of an event, by its number in the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Qp(u32),
    Cq(u32),
    Srq(u32),
}

/// The unacknowledged events of an object.
#[derive(Debug)]
struct EventCount {
    /// Address of the C structure that events name.
    c: usize,
    /// Number of events that were delivered and not acknowledged.
    pending: usize,
}

impl AsyncEventPort {
    /// Makes the adapter signal its asynchronous events to `wake`.
    pub(crate) fn new(engine: &Arc<Engine>, wake: ChannelWake) -> Self {
        engine.device().events().open(Box::new(wake.clone()));
        Self {
            engine: Arc::clone(engine),
            wake,
            objects: Mutex::default(),
            acknowledged: Condvar::new(),
            port_watched: Once::new(),
        }
    }

    /// Enables events of the port, once. Called when the program waits for events or creates a queue pair, and not
    /// when it opens the device, because watching the port takes a thread.
    pub(crate) fn watch_port(&self) -> &Self {
        self.port_watched.call_once(|| {
            if let Err(error) = self.engine.raise_port_events() {
                tracing::warn!(%error, "failed to watch the port: its events will not be raised");
            }
        });
        self
    }

    /// Enables events about an object whose C structure is `c`.
    pub(crate) fn add<T>(&self, subject: Subject, c: *mut T) {
        self.objects().insert(subject, EventCount { c: c as usize, pending: 0 });
    }

    /// Disables events about an object that is about to be destroyed. Waits until all its events are
    /// acknowledged, as every destroy verb does.
    pub(crate) fn remove<T>(&self, subject: Subject, c: *mut T) {
        let mut objects = self.objects();
        // An XRC queue pair may have several objects. Only the first, from its creation, gets its events.
        if objects.get(&subject).is_none_or(|count| count.c != c as usize) {
            return;
        }
        let pending = |objects: &HashMap<Subject, EventCount>| {
            objects.get(&subject).map_or(0, |count| count.pending as u64)
        };
        objects = wait_until_acknowledged(&self.acknowledged, objects, "object", pending);
        objects.remove(&subject);
    }

    /// Locks the map of objects.
    fn objects(&self) -> MutexGuard<'_, HashMap<Subject, EventCount>> {
        lock(&self.objects)
    }

    /// Returns the descriptor that the program waits on.
    pub(crate) fn fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// Takes the next event, or returns `None` if there is none. Skips events of objects that were destroyed. The
    /// event counts as pending until the program acknowledges it.
    pub(crate) fn next(&self) -> Option<ibv_async_event> {
        loop {
            let event = self.engine.device().events().try_next()?;
            if matches!(event, AsyncEvent::AdminCommand(_)) {
                continue; // verbs have no such event
            }
            let (event_type, subject) = to_c(event);
            let element = match subject {
                None => ibv_async_event_element { port_num: 1 },
                Some(subject) => {
                    let mut objects = self.objects();
                    let Some(count) = objects.get_mut(&subject) else { continue };
                    count.pending += 1;
                    match subject {
                        Subject::Qp(_) => ibv_async_event_element { qp: count.c as *mut ibv_qp },
                        Subject::Cq(_) => ibv_async_event_element { cq: count.c as *mut ibv_cq },
                        Subject::Srq(_) => ibv_async_event_element { srq: count.c as *mut ibv_srq },
                    }
                }
            };
            return Some(ibv_async_event { element, event_type });
        }
    }

    /// Counts one event about `subject` as acknowledged.
    pub(crate) fn acknowledge(&self, subject: Subject) {
        if let Some(count) = self.objects().get_mut(&subject) {
            count.pending = count.pending.saturating_sub(1);
        }
        self.acknowledged.notify_all();
    }
}

/// Returns the C type of an event, and the object that the event is about. `None` if it is the port or the device.
fn to_c(event: AsyncEvent) -> (ibv_event_type, Option<Subject>) {
    match event {
        AsyncEvent::QpFatal(qp) => (IBV_EVENT_QP_FATAL, Some(Subject::Qp(qp))),
        AsyncEvent::QpRequestError(qp) => (IBV_EVENT_QP_REQ_ERR, Some(Subject::Qp(qp))),
        AsyncEvent::QpAccessError(qp) => (IBV_EVENT_QP_ACCESS_ERR, Some(Subject::Qp(qp))),
        AsyncEvent::Established(qp) => (IBV_EVENT_COMM_EST, Some(Subject::Qp(qp))),
        AsyncEvent::SqDrained(qp) => (IBV_EVENT_SQ_DRAINED, Some(Subject::Qp(qp))),
        AsyncEvent::LastWqeReached(qp) => (IBV_EVENT_QP_LAST_WQE_REACHED, Some(Subject::Qp(qp))),
        AsyncEvent::CqError(cq) => (IBV_EVENT_CQ_ERR, Some(Subject::Cq(cq))),
        AsyncEvent::SrqLimitReached(srq) => (IBV_EVENT_SRQ_LIMIT_REACHED, Some(Subject::Srq(srq))),
        AsyncEvent::SrqError(srq) => (IBV_EVENT_SRQ_ERR, Some(Subject::Srq(srq))),
        AsyncEvent::PortActive(_) => (IBV_EVENT_PORT_ACTIVE, None),
        AsyncEvent::PortError(_) => (IBV_EVENT_PORT_ERR, None),
        AsyncEvent::GidChange(_) => (IBV_EVENT_GID_CHANGE, None),
        _ => (IBV_EVENT_DEVICE_FATAL, None),
    }
}
