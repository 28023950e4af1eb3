//! Asynchronous events: what happens to objects outside of any request. Before this: the adapter's event queue; after: the
//! program's thread, which acknowledges each. An object is not destroyed before its events are.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use crate::abi::*;
use crate::cancel::uncancelled;
use crate::context::Context;
use crate::errno::{Errno, minus_one};
use crate::object::{find, put};
use crate::sync::lock;
use crate::wake::{ChannelWake, wait};
use ironwarp_engine::Engine;
use ironwarp_rnic::event::AsyncEvent;
use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};

/// Where the asynchronous events of a context come from, and whom they are about.
#[derive(Debug)]
pub(crate) struct AsyncEventPort {
    engine: Arc<Engine>,
    wake: ChannelWake,
    objects: Mutex<HashMap<Subject, Told>>,
    acknowledged: Condvar,
    watched: Once,
}

/// Whom an event can be about, by its number in the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Qp(u32),
    Cq(u32),
    Srq(u32),
}

/// What C calls it, and how many of its events are not acknowledged.
#[derive(Debug)]
struct Told {
    c: usize,
    pending: usize,
}

impl AsyncEventPort {
    pub(crate) fn new(engine: &Arc<Engine>, wake: ChannelWake) -> Self {
        engine.device().events().open(Box::new(wake.clone()));
        Self {
            engine: Arc::clone(engine),
            wake,
            objects: Mutex::default(),
            acknowledged: Condvar::new(),
            watched: Once::new(),
        }
    }

    /// Events of the port come from now on: not before somebody could want them, because it takes a thread.
    pub(crate) fn watch_port(&self) -> &Self {
        self.watched.call_once(|| {
            if let Err(error) = self.engine.raise_port_events() {
                tracing::warn!(%error, "changes of the port will not be told");
            }
        });
        self
    }

    /// From now on events may be about this object.
    pub(crate) fn add<T>(&self, subject: Subject, c: *mut T) {
        self.objects().insert(subject, Told { c: c as usize, pending: 0 });
    }

    /// The object is about to be destroyed: waits until its events are acknowledged, as every destroy verb does.
    pub(crate) fn remove<T>(&self, subject: Subject, c: *mut T) {
        let mut objects = self.objects();
        // Another object may stand for the same queue pair: it is the one that is told.
        if objects.get(&subject).is_none_or(|told| told.c != c as usize) {
            return;
        }
        while objects.get(&subject).is_some_and(|told| told.pending > 0) {
            objects = self.acknowledged.wait(objects).unwrap_or_else(PoisonError::into_inner);
        }
        objects.remove(&subject);
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<Subject, Told>> {
        lock(&self.objects)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// The next event, in C's form. Events of objects that are gone are passed over.
    fn next(&self) -> Option<ibv_async_event> {
        loop {
            let event = self.engine.device().events().next()?;
            let (event_type, subject) = named(event);
            let element = match subject {
                None => ibv_async_event_element { port_num: 1 },
                Some(subject) => {
                    let mut objects = self.objects();
                    let Some(told) = objects.get_mut(&subject) else { continue };
                    told.pending += 1;
                    match subject {
                        Subject::Qp(_) => ibv_async_event_element { qp: told.c as *mut ibv_qp },
                        Subject::Cq(_) => ibv_async_event_element { cq: told.c as *mut ibv_cq },
                        Subject::Srq(_) => ibv_async_event_element { srq: told.c as *mut ibv_srq },
                    }
                }
            };
            return Some(ibv_async_event { element, event_type });
        }
    }

    fn acknowledge(&self, subject: Subject) {
        if let Some(told) = self.objects().get_mut(&subject) {
            told.pending = told.pending.saturating_sub(1);
        }
        self.acknowledged.notify_all();
    }
}

/// What the verbs call an event, and whom it is about.
fn named(event: AsyncEvent) -> (ibv_event_type, Option<Subject>) {
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

/// Blocks in here, where the program may cancel the thread: nothing with a destructor is alive, and the context is looked up
/// again afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    if event.is_null() {
        return minus_one!(Err(Errno::null("event")));
    }
    loop {
        let fd = uncancelled(|| find::<Context>(context).map(|context| context.events().watch_port().fd()));
        let Ok(fd) = fd else { return minus_one!(Err(Errno::INVALID)) };
        if let Err(errno) = wait(fd) {
            return minus_one!(Err(errno));
        }
        if let Some(next) = uncancelled(|| find::<Context>(context).ok()?.events().next()) {
            // SAFETY: not NULL, and the caller's.
            unsafe { put(event, next) };
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    if event.is_null() {
        return;
    }
    // SAFETY: not NULL, and the caller's.
    let event = unsafe { *event };
    match event.event_type {
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_COMM_EST
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: of this type of event.
            let qp = unsafe { event.element.qp };
            if let Ok(qp) = find::<crate::qp::Qp>(qp) {
                qp.context().events().acknowledge(Subject::Qp(qp.number()));
            }
        }
        IBV_EVENT_CQ_ERR => {
            // SAFETY: of this type of event.
            let cq = unsafe { event.element.cq };
            if let Ok(cq) = find::<crate::cq::Cq>(cq.cast()) {
                cq.context().events().acknowledge(Subject::Cq(cq.inner().cq().id()));
            }
        }
        IBV_EVENT_SRQ_LIMIT_REACHED | IBV_EVENT_SRQ_ERR => {
            // SAFETY: of this type of event.
            let srq = unsafe { event.element.srq };
            if let Ok(srq) = find::<crate::srq::Srq>(srq) {
                srq.context().events().acknowledge(Subject::Srq(srq.inner().id()));
            }
        }
        _ => {} // the port's and the device's: nobody waits for these
    }
}
