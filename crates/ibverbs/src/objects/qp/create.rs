//! Creating queue pairs.

use super::{Builder, EventRelay, Kind, Qp};
use crate::abi::*;
use crate::objects::async_event::Subject;
use crate::objects::context::Context;
use crate::objects::cq::Cq;
use crate::objects::limits::{MAX_INLINE, MAX_REQUESTS, MAX_SGES, MIN_INLINE};
use crate::objects::pd::Pd;
use crate::objects::srq::Srq;
use crate::objects::xrc::Xrcd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, CObject, Uses, find, publish};
use crate::support::report;
use crate::support::turn::Turn;
use ironwarp_engine::{DatagramQueuePairAttributes, QueuePairAttributes, QueuePairOptions};
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// What to create a queue pair with.
#[derive(Debug)]
pub(crate) struct QpAttributes {
    pub(crate) init: ibv_qp_init_attr,
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    pub(crate) extended: Option<ExtendedCalls>,
    /// Where the connection manager that will connect it gets its events.
    pub(crate) relay: Option<Arc<EventRelay>>,
}

/// The extended calls of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtendedCalls {
    /// The operations, by their bits in `send_ops_flags`.
    pub(crate) operations: u64,
    /// Puts the functions for these operations into the C structure.
    pub(crate) fill: fn(&mut ibv_qp_ex, u64),
}

/// The objects that a new queue pair uses.
struct Parts {
    context: Arc<Context>,
    pd: Option<Arc<Pd>>,
    send_cq: Arc<Cq>,
    receive_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    uses: Uses,
}

impl Parts {
    fn find(pd: *mut ibv_pd, wanted: &QpAttributes) -> Result<Self, Errno> {
        let init = &wanted.init;
        let mut parts = match init.qp_type {
            IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_XRC_SEND => Self::of_pd(pd, init)?,
            IBV_QPT_XRC_RECV => Self::of_xrcd(wanted.xrcd.as_deref())?,
            _ => {
                return Err(Errno::UNSUPPORTED.because(format_args!(
                    "qp_type {} is not supported, use RC, UC, UD or XRC",
                    init.qp_type
                )));
            }
        };
        if !init.srq.is_null() {
            let srq = find::<Srq>(init.srq)?;
            parts.uses = parts.uses.and(&*srq)?;
            parts.srq = Some(srq);
        }
        Ok(parts)
    }

    fn of_pd(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<Self, Errno> {
        let pd = find::<Pd>(pd)?;
        let (send, receive) = match init.qp_type {
            // It does not receive, so one queue serves for both.
            IBV_QPT_XRC_SEND => (init.send_cq, init.send_cq),
            _ => (init.send_cq, init.recv_cq),
        };
        let (send_cq, receive_cq) = (find::<Cq>(send.cast())?, find::<Cq>(receive.cast())?);
        let context = Arc::clone(pd.context());
        if !Arc::ptr_eq(&context, send_cq.context()) || !Arc::ptr_eq(&context, receive_cq.context()) {
            return Err(Errno::INVALID
                .because("protection domain and completion queues belong to different contexts"));
        }
        let uses = Uses::of(&*pd)?.and(&*send_cq)?.and(&*receive_cq)?;
        Ok(Self { context, pd: Some(pd), send_cq, receive_cq, srq: None, uses })
    }

    fn of_xrcd(xrcd: Option<&Xrcd>) -> Result<Self, Errno> {
        let xrcd = xrcd.ok_or_else(|| {
            Errno::INVALID
                .because("an XRC receive queue pair requires an XRC domain: set IBV_QP_INIT_ATTR_XRCD")
        })?;
        // A message names the shared receive queue it uses, and completes there. The queue pair itself
        // completes nothing.
        let cq = xrcd.spare_cq()?;
        let (context, uses) = (Arc::clone(xrcd.context()), Uses::of(xrcd)?.and(&*cq)?);
        Ok(Self { context, pd: None, send_cq: Arc::clone(&cq), receive_cq: cq, srq: None, uses })
    }

    fn domain(&self) -> Domain {
        self.pd.as_ref().map_or(Domain::default(), |pd| pd.domain())
    }
}

impl Qp {
    /// Creates a queue pair in `pd`. Its `init` has the capacities that were granted.
    pub(crate) fn new(pd: *mut ibv_pd, mut wanted: QpAttributes) -> Result<Arc<Self>, Errno> {
        grant(&mut wanted.init.cap)?;
        let parts = Parts::find(pd, &wanted)?;
        parts.context.events().watch_port();
        let kind = match wanted.init.qp_type {
            IBV_QPT_UD => datagram(&parts, &wanted.init)?,
            _ => stream(&parts, &wanted)?,
        };
        Ok(assemble(parts, kind, wanted))
    }
}

fn datagram(parts: &Parts, init: &ibv_qp_init_attr) -> Result<Kind, Errno> {
    let (send_cq, engine) = (parts.send_cq.inner(), parts.context.engine());
    let attributes = DatagramQueuePairAttributes {
        send_cq: Arc::clone(send_cq),
        receive_cq: Arc::clone(parts.receive_cq.inner()),
        send_depth: init.cap.max_send_wr as usize,
        receive_depth: init.cap.max_recv_wr as usize,
        shared: parts.srq.as_ref().map(|srq| Arc::clone(srq.inner())),
        max_sges: max_sges(init),
        ..DatagramQueuePairAttributes::new(parts.domain(), send_cq)
    };
    let port = engine.bind_datagram_port(None)?;
    Ok(Kind::Datagram(engine.create_datagram_qp(&attributes, port)?))
}

fn stream(parts: &Parts, wanted: &QpAttributes) -> Result<Kind, Errno> {
    let init = &wanted.init;
    let receives = match (init.qp_type, &parts.srq, &wanted.xrcd) {
        (IBV_QPT_XRC_RECV, _, Some(xrcd)) => Receives::Named(Arc::clone(xrcd.inner())),
        (IBV_QPT_XRC_SEND, ..) => Receives::Own(0),
        (_, Some(srq), _) => Receives::Shared(Arc::clone(srq.inner())),
        _ => Receives::Own(init.cap.max_recv_wr as usize),
    };
    // An unreliable request is done when it is sent. Every other completion carries the peer's
    // acknowledgement, in either persona.
    let unreliable = init.qp_type == IBV_QPT_UC;
    let completes = if unreliable { Completes::WhenSent } else { Completes::WhenAcknowledged };
    let manual = wanted.relay.is_none();
    let send_cq = parts.send_cq.inner();
    let attributes = QueuePairAttributes {
        send_cq: Arc::clone(send_cq),
        receive_cq: Arc::clone(parts.receive_cq.inner()),
        send_depth: init.cap.max_send_wr as usize,
        receives,
        max_sges: max_sges(init),
        completes,
        // Nothing is allowed before the program sets access flags or connects.
        rights: if manual { Rights::empty() } else { Rights::REMOTE },
        manual,
        ..QueuePairAttributes::new(parts.domain(), send_cq)
    };
    let events = report::ConnectionLog::new(wanted.relay.clone().map(|relay| relay as _));
    let options = QueuePairOptions { reachable: true, events: Some(events) };
    let pair = parts.context.engine().create_qp_with(attributes, options)?;
    report::register_pair(&pair);
    Ok(Kind::Stream(pair))
}

fn max_sges(init: &ibv_qp_init_attr) -> usize {
    init.cap.max_send_sge.max(init.cap.max_recv_sge) as usize
}

fn assemble(parts: Parts, kind: Kind, wanted: QpAttributes) -> Arc<Qp> {
    let Parts { context, pd, uses, .. } = parts;
    let QpAttributes { init, xrcd, extended, relay } = wanted;
    let mut c = plain(&context, pd.as_deref(), &kind, &init);
    if let Some(ExtendedCalls { operations, fill }) = extended {
        fill(&mut c, operations);
    }
    let qp = Qp {
        c: CCell::new(c),
        kind,
        init,
        xrc: xrcd.map(|xrcd| Arc::clone(xrcd.inner())),
        attr: Arc::new(Mutex::new(ibv_qp_attr::zeroed())),
        builder: CCell::new(Builder::default()),
        turn: Turn::new(pd.as_ref().is_some_and(|pd| pd.is_single_threaded())),
        handles: Arc::new(AtomicUsize::new(1)),
        relay,
        _pd: pd,
        context,
    };
    let qp = publish(qp, uses);
    super::close_at_exit();
    qp.note_state();
    qp.context.events().add(Subject::Qp(qp.number()), qp.c());
    qp
}

/// The C structure, without the extended calls.
pub(super) fn plain(context: &Context, pd: Option<&Pd>, kind: &Kind, init: &ibv_qp_init_attr) -> ibv_qp_ex {
    let mut c = ibv_qp_ex::zeroed();
    let base = &mut c.qp_base;
    base.context = context.c();
    base.qp_context = init.qp_context;
    base.pd = pd.map_or(std::ptr::null_mut(), CObject::c);
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    base.qp_type = init.qp_type;
    base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    base.cond = libc::PTHREAD_COND_INITIALIZER;
    base.qp_num = match kind {
        Kind::Stream(pair) => pair.id(),
        Kind::Datagram(pair) => pair.id(),
    };
    base.handle = base.qp_num;
    c
}

/// Sets the granted capacities, which are at least those asked for.
fn grant(cap: &mut ibv_qp_cap) -> Result<(), Errno> {
    let depths = cap.max_send_wr.max(cap.max_recv_wr);
    let sges = cap.max_send_sge.max(cap.max_recv_sge);
    let asked = [
        ("max_send_wr or max_recv_wr", depths, MAX_REQUESTS),
        ("max_send_sge or max_recv_sge", sges, MAX_SGES),
        ("max_inline_data", cap.max_inline_data, MAX_INLINE),
    ];
    if let Some((name, asked, max)) = asked.iter().find(|(_, asked, max)| asked > max) {
        return Err(Errno::INVALID.because(format_args!("{name} {asked} exceeds the maximum of {max}")));
    }
    cap.max_inline_data = cap.max_inline_data.max(MIN_INLINE);
    cap.max_send_sge = cap.max_send_sge.max(1);
    cap.max_recv_sge = cap.max_recv_sge.max(1);
    Ok(())
}
