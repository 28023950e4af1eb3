//! Creates queue pairs: finds the objects that the attributes name, creates the queue pair of the adapter, and puts
//! both into an object for C.

use super::{Builder, EventRelay, Kind, Qp};
use crate::abi::*;
use crate::check::{self, Engine, PairAttributes};
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

/// The attributes of a new queue pair.
#[derive(Debug)]
pub(crate) struct QpAttributes {
    pub(crate) init: ibv_qp_init_attr,
    /// The XRC domain, which only an XRC receive queue pair has.
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    /// The extended calls, if the program requested them.
    pub(crate) extended: Option<ExtendedCalls>,
    /// Forwards connection events to librdmacm. `None` for a queue pair that will be connected manually.
    pub(crate) relay: Option<Arc<EventRelay>>,
}

/// The extended calls of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtendedCalls {
    /// The operations that the program may post by these calls, as bits of `send_ops_flags`.
    pub(crate) operations: u64,
    /// Writes the functions for `operations` to the C structure.
    pub(crate) fill: fn(&mut ibv_qp_ex, u64),
}

/// The objects that a new queue pair uses.
struct Parts {
    context: Arc<Context>,
    /// `None` for an XRC receive queue pair.
    pd: Option<Arc<Pd>>,
    send_cq: Arc<Cq>,
    receive_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
    /// Keeps the objects above from being destroyed.
    uses: Uses,
}

impl Parts {
    /// Finds the objects that the attributes name.
    fn find(pd: *mut ibv_pd, attributes: &QpAttributes) -> Result<Self, Errno> {
        let init = &attributes.init;
        let mut parts = match init.qp_type {
            IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_XRC_SEND => Self::of_pd(pd, init)?,
            IBV_QPT_XRC_RECV => Self::of_xrcd(attributes.xrcd.as_deref())?,
            _ => {
                return Err(Errno::UNSUPPORTED.because(format_args!(
                    "qp_type {} is not supported, use RC, UC, UD or XRC",
                    init.qp_type
                )));
            }
        };
        if !init.srq.is_null() {
            let srq = find::<Srq>(init.srq)?;
            parts.context.check_same_adapter(srq.context(), "shared receive queue")?;
            parts.uses = parts.uses.and(&*srq)?;
            parts.srq = Some(srq);
        }
        Ok(parts)
    }

    /// Finds the objects of a queue pair in a protection domain, except for the shared receive queue.
    fn of_pd(pd: *mut ibv_pd, init: &ibv_qp_init_attr) -> Result<Self, Errno> {
        let pd = find::<Pd>(pd)?;
        let (send, receive) = match init.qp_type {
            // This type does not receive, and `recv_cq` may be NULL.
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

    /// Finds the objects of an XRC receive queue pair, which has an XRC domain instead of a protection domain.
    fn of_xrcd(xrcd: Option<&Xrcd>) -> Result<Self, Errno> {
        let xrcd = xrcd.ok_or_else(|| {
            Errno::INVALID
                .because("an XRC receive queue pair requires an XRC domain: set IBV_QP_INIT_ATTR_XRCD")
        })?;
        // Each message names a shared receive queue, and completes in the completion queue of that one. The
        // completion queue of the queue pair itself stays empty.
        let cq = xrcd.unused_cq()?;
        let (context, uses) = (Arc::clone(xrcd.context()), Uses::of(xrcd)?.and(&*cq)?);
        Ok(Self { context, pd: None, send_cq: Arc::clone(&cq), receive_cq: cq, srq: None, uses })
    }

    /// Returns the number of the protection domain. An XRC receive queue pair has none, so the number does not matter:
    /// peers access the memory of the domains that its shared receive queues belong to.
    fn domain(&self) -> Domain {
        self.pd.as_ref().map_or(Domain::default(), |pd| pd.domain())
    }
}

impl Qp {
    /// Creates a queue pair in `pd`, which is NULL for an XRC receive queue pair. The `init` of the result has the
    /// capacities that were granted.
    pub(crate) fn new(pd: *mut ibv_pd, mut attributes: QpAttributes) -> Result<Arc<Self>, Errno> {
        if let Some(checker) = check::active() {
            checker.creating_pair(&attributes.init);
        }
        grant(&mut attributes.init.cap)?;
        let parts = Parts::find(pd, &attributes)?;
        parts.context.events().watch_port();
        let kind = match attributes.init.qp_type {
            IBV_QPT_UD => create_datagram(&parts, &attributes.init)?,
            _ => create_stream(&parts, &attributes)?,
        };
        Ok(assemble(parts, kind, attributes))
    }
}

/// Creates the adapter's queue pair for a UD queue pair, with a UDP port of its own.
fn create_datagram(parts: &Parts, init: &ibv_qp_init_attr) -> Result<Kind, Errno> {
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

/// Creates the adapter's queue pair for a connected queue pair.
fn create_stream(parts: &Parts, attributes: &QpAttributes) -> Result<Kind, Errno> {
    let init = &attributes.init;
    let receives = match (init.qp_type, &parts.srq, &attributes.xrcd) {
        (IBV_QPT_XRC_RECV, _, Some(xrcd)) => Receives::Named(Arc::clone(xrcd.inner())),
        (IBV_QPT_XRC_SEND, ..) => Receives::Own(0),
        (_, Some(srq), _) => Receives::Shared(Arc::clone(srq.inner())),
        _ => Receives::Own(init.cap.max_recv_wr as usize),
    };
    // A request of a UC queue pair completes when it is sent. Requests of other types complete when the peer has
    // acknowledged them, in either persona.
    let is_unreliable = init.qp_type == IBV_QPT_UC;
    let completes = if is_unreliable { Completes::WhenSent } else { Completes::WhenAcknowledged };
    let manual = attributes.relay.is_none();
    let send_cq = parts.send_cq.inner();
    let pair_attributes = QueuePairAttributes {
        send_cq: Arc::clone(send_cq),
        receive_cq: Arc::clone(parts.receive_cq.inner()),
        send_depth: init.cap.max_send_wr as usize,
        receives,
        max_sges: max_sges(init),
        completes,
        // Manually connected: nothing is allowed before the program sets `qp_access_flags`. librdmacm sets them
        // for the program, and allows everything.
        rights: if manual { Rights::empty() } else { Rights::REMOTE },
        manual,
        ..QueuePairAttributes::new(parts.domain(), send_cq)
    };
    let events = report::ConnectionLog::new(attributes.relay.clone().map(|relay| relay as _));
    let options = QueuePairOptions { reachable: true, events: Some(events) };
    let pair = parts.context.engine().create_qp_with(pair_attributes, options)?;
    report::register_pair(&pair);
    Ok(Kind::Stream(pair))
}

/// Returns the maximum number of scatter/gather elements of a send or receive request. The adapter has one limit for
/// both.
fn max_sges(init: &ibv_qp_init_attr) -> usize {
    init.cap.max_send_sge.max(init.cap.max_recv_sge) as usize
}

/// Makes the object for C from its parts, and publishes it.
fn assemble(parts: Parts, kind: Kind, attributes: QpAttributes) -> Arc<Qp> {
    let Parts { context, pd, uses, .. } = parts;
    let QpAttributes { init, xrcd, extended, relay } = attributes;
    let mut c = c_structure(&context, pd.as_deref(), &kind, &init);
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
    if let Some(checker) = check::active() {
        checker.pair_created(&PairAttributes {
            adapter: qp.context.adapter_key(),
            number: qp.number(),
            send_cq: init.send_cq as usize,
            receive_cq: init.recv_cq as usize,
            srq: init.srq as usize,
            send_depth: init.cap.max_send_wr as usize,
            engine: match &qp.kind {
                Kind::Stream(pair) => Engine::Stream(Arc::downgrade(pair)),
                Kind::Datagram(pair) => Engine::Datagram(Arc::downgrade(pair)),
            },
        });
    }
    super::close_at_exit();
    qp.refresh_state();
    qp.context.events().add(Subject::Qp(qp.number()), qp.c());
    qp
}

/// Returns the C structure of a queue pair, without the extended calls.
pub(super) fn c_structure(
    context: &Context,
    pd: Option<&Pd>,
    kind: &Kind,
    init: &ibv_qp_init_attr,
) -> ibv_qp_ex {
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

/// Replaces the requested capacities by the granted ones, which are at least as large. Fails with EINVAL if a request
/// exceeds the limits of the adapter.
fn grant(cap: &mut ibv_qp_cap) -> Result<(), Errno> {
    let depths = cap.max_send_wr.max(cap.max_recv_wr);
    let sges = cap.max_send_sge.max(cap.max_recv_sge);
    let requested = [
        ("max_send_wr or max_recv_wr", depths, MAX_REQUESTS),
        ("max_send_sge or max_recv_sge", sges, MAX_SGES),
        ("max_inline_data", cap.max_inline_data, MAX_INLINE),
    ];
    if let Some((name, value, max)) = requested.iter().find(|(_, value, max)| value > max) {
        return Err(Errno::INVALID.because(format_args!("{name} {value} exceeds the maximum of {max}")));
    }
    cap.max_inline_data = cap.max_inline_data.max(MIN_INLINE);
    cap.max_send_sge = cap.max_send_sge.max(1);
    cap.max_recv_sge = cap.max_recv_sge.max(1);
    Ok(())
}
