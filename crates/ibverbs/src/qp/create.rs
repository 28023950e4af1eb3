//! How queue pairs come to be.
#![expect(unsafe_code, reason = "entry points of the C ABI")]

use super::{Kind, LEAST_INLINE, MOST_INLINE, MOST_REQUESTS, MOST_SGES, Qp, parts};
use crate::abi::*;
use crate::async_event::Subject;
use crate::cm::Watch;
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::{Errno, object};
use crate::object::{CObject, Uses, find, publish};
use crate::pd::Pd;
use crate::qp_ex::{self, Building};
use crate::report;
use crate::srq::Srq;
use crate::turn::Turn;
use crate::xrc::Xrcd;
use ironwarp_engine::{DatagramQueuePairAttributes, QueuePairAttributes};
use ironwarp_rnic::memory::{Domain, Rights};
use ironwarp_rnic::qp::{Completes, Receives};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// What a queue pair is made with, in whichever way it was asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) init: ibv_qp_init_attr,
    pub(crate) xrcd: Option<Arc<Xrcd>>,
    /// The extended calls that it is to have.
    pub(crate) send_ops: Option<u64>,
    /// It is connected by a connection manager, which is told what happens to it.
    pub(crate) watcher: Option<Arc<Watch>>,
}

impl Qp {
    /// A queue pair in `pd`. What it was granted is in its `init`.
    pub(crate) fn new(pd: *mut ibv_pd, wanted: Wanted) -> Result<Arc<Self>, Errno> {
        let mut init = wanted.init;
        grant(&mut init.cap)?;
        match init.qp_type {
            IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_UD | IBV_QPT_XRC_SEND => {
                let (pd, [send_cq, receive_cq]) = parts(pd, &init)?;
                let uses = Uses::of(&*pd)?.and(&*send_cq)?.and(&*receive_cq)?;
                let context = Arc::clone(pd.context());
                build(context, Some(pd), (&send_cq, &receive_cq), uses, init, wanted)
            }
            IBV_QPT_XRC_RECV => {
                let xrcd = wanted.xrcd.as_ref().ok_or_else(|| {
                    Errno::INVALID
                        .because("an XRC receive queue pair is made in an XRC domain: IBV_QP_INIT_ATTR_XRCD")
                })?;
                let context = Arc::clone(xrcd.context());
                // Its receives are those of the queues that messages name, and complete there. It has none itself.
                let cq = xrcd.spare_cq()?;
                let uses = Uses::of(&**xrcd)?.and(&*cq)?;
                build(context, None, (&cq, &cq), uses, init, wanted)
            }
            _ => Err(Errno::UNSUPPORTED
                .because(format_args!("qp_type {} is not there: RC, UC, UD and XRC are", init.qp_type))),
        }
    }
}

fn build(
    context: Arc<Context>,
    pd: Option<Arc<Pd>>,
    (send_cq, receive_cq): (&Cq, &Cq),
    mut uses: Uses,
    init: ibv_qp_init_attr,
    wanted: Wanted,
) -> Result<Arc<Qp>, Errno> {
    let srq = match init.srq.is_null() {
        true => None,
        false => Some(find::<Srq>(init.srq)?),
    };
    if let Some(srq) = &srq {
        uses = uses.and(&**srq)?;
    }
    let domain = pd.as_ref().map_or(Domain::default(), |pd| pd.domain());
    context.events().watch_port();
    let depth = |requests: u32| requests as usize;
    let max_sges = depth(init.cap.max_send_sge.max(init.cap.max_recv_sge));
    let kind = if init.qp_type == IBV_QPT_UD {
        let attributes = DatagramQueuePairAttributes {
            send_cq: Arc::clone(send_cq.inner()),
            receive_cq: Arc::clone(receive_cq.inner()),
            send_depth: depth(init.cap.max_send_wr),
            receive_depth: depth(init.cap.max_recv_wr),
            shared: srq.map(|srq| Arc::clone(srq.inner())),
            max_sges,
            ..DatagramQueuePairAttributes::new(domain, send_cq.inner())
        };
        let port = context.engine().datagram_port(None)?;
        Kind::Datagram(context.engine().create_datagram_qp(&attributes, port)?)
    } else {
        let receives = match (init.qp_type, srq, &wanted.xrcd) {
            (IBV_QPT_XRC_RECV, _, Some(xrcd)) => Receives::Named(Arc::clone(xrcd.inner())),
            (IBV_QPT_XRC_SEND, ..) => Receives::Own(0),
            (_, Some(srq), _) => Receives::Shared(Arc::clone(srq.inner())),
            _ => Receives::Own(depth(init.cap.max_recv_wr)),
        };
        // What is sent unreliably is done when it is sent. Everything else carries the peer's verdict, in either persona.
        let unreliable = init.qp_type == IBV_QPT_UC;
        let completes = if unreliable { Completes::WhenSent } else { Completes::WhenAcknowledged };
        let by_hand = wanted.watcher.is_none();
        let pair = context.engine().create_qp(QueuePairAttributes {
            send_cq: Arc::clone(send_cq.inner()),
            receive_cq: Arc::clone(receive_cq.inner()),
            send_depth: depth(init.cap.max_send_wr),
            receives,
            max_sges,
            completes,
            // Nothing is allowed before the program says so, on its way up or by connecting.
            rights: if by_hand { Rights::empty() } else { Rights::REMOTE },
            by_hand,
            reachable: true,
            events: Some(report::told(wanted.watcher.clone().map(|watch| watch as _))),
            ..QueuePairAttributes::new(domain, send_cq.inner())
        })?;
        report::know(&pair);
        Kind::Stream(pair)
    };
    Ok(put_together(context, pd, kind, init, &wanted, uses))
}

fn put_together(
    context: Arc<Context>,
    pd: Option<Arc<Pd>>,
    kind: Kind,
    init: ibv_qp_init_attr,
    wanted: &Wanted,
    uses: Uses,
) -> Arc<Qp> {
    let mut c = plain(&context, pd.as_deref(), &kind, &init);
    if let Some(ops) = wanted.send_ops {
        qp_ex::fill(&mut c, ops);
    }
    let single_threaded = pd.as_ref().is_some_and(|pd| pd.is_single_threaded());
    let qp = Qp {
        c: UnsafeCell::new(c),
        kind,
        init,
        xrc: wanted.xrcd.as_ref().map(|xrcd| Arc::clone(xrcd.inner())),
        attr: Arc::new(Mutex::new(ibv_qp_attr::zeroed())),
        builder: UnsafeCell::default(),
        building: Building { turn: Turn::default(), single_threaded },
        handles: Arc::new(AtomicUsize::new(1)),
        watch: wanted.watcher.clone(),
        _pd: pd,
        context,
    };
    let qp = publish(qp, uses);
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

/// What is granted: at least what is asked for.
fn grant(cap: &mut ibv_qp_cap) -> Result<(), Errno> {
    let depths = cap.max_send_wr.max(cap.max_recv_wr);
    let sges = cap.max_send_sge.max(cap.max_recv_sge);
    let asked = [
        ("max_send_wr or max_recv_wr", depths, MOST_REQUESTS),
        ("max_send_sge or max_recv_sge", sges, MOST_SGES),
        ("max_inline_data", cap.max_inline_data, MOST_INLINE),
    ];
    if let Some((name, asked, most)) = asked.iter().find(|(_, asked, most)| asked > most) {
        return Err(Errno::INVALID.because(format_args!("{name} is {asked}, {most} are possible")));
    }
    cap.max_inline_data = cap.max_inline_data.max(LEAST_INLINE);
    cap.max_send_sge = cap.max_send_sge.max(1);
    cap.max_recv_sge = cap.max_recv_sge.max(1);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    if init.is_null() {
        return object!(Err(Errno::null("init")));
    }
    // SAFETY: the caller's.
    let init = unsafe { &mut *init };
    let wanted = Wanted { init: *init, xrcd: None, send_ops: None, watcher: None };
    object!(Qp::new(pd, wanted).map(|qp| {
        init.cap = qp.init().cap;
        qp.c()
    }))
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    if attr.is_null() {
        return object!(Err(Errno::null("attr")));
    }
    // SAFETY: the caller's; at least the part that is common to both forms is there, and the rest as `comp_mask` says.
    unsafe { object!(create_extended(attr, None).map(|qp| qp.c())) }
}

/// # Safety
/// `attr` is the caller's, with the fields that its `comp_mask` names.
pub(crate) unsafe fn create_extended(
    attr: *mut ibv_qp_init_attr_ex,
    watcher: Option<Arc<Watch>>,
) -> Result<Arc<Qp>, Errno> {
    // SAFETY: the common part is always there, and the mask is right behind it.
    let (mut init, mask) = unsafe { (attr.cast::<ibv_qp_init_attr>().read(), (*attr).comp_mask) };
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if mask & !known != 0 {
        return Err(
            Errno::UNSUPPORTED.because(format_args!("comp_mask {mask:#x} asks for what is not there"))
        );
    }
    // SAFETY: each is read only if the mask says that it is there.
    let (pd, xrcd, create_flags, send_ops) = unsafe {
        (
            if mask & IBV_QP_INIT_ATTR_PD != 0 { (*attr).pd } else { std::ptr::null_mut() },
            if mask & IBV_QP_INIT_ATTR_XRCD != 0 { Some(find::<Xrcd>((*attr).xrcd)?) } else { None },
            if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 { (*attr).create_flags } else { 0 },
            (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then(|| (*attr).send_ops_flags),
        )
    };
    if create_flags != 0 || send_ops.is_some_and(|ops| !qp_ex::serves(init.qp_type, ops)) {
        return Err(
            Errno::UNSUPPORTED.because("create_flags, or an operation in send_ops_flags, that is not there")
        );
    }
    if xrcd.is_some() {
        init.qp_type = IBV_QPT_XRC_RECV;
    }
    let qp = Qp::new(pd, Wanted { init, xrcd, send_ops, watcher })?;
    // SAFETY: the caller's; what was granted is told there.
    unsafe { (*attr).cap = qp.init().cap };
    Ok(qp)
}
