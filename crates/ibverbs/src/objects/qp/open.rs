//! Opening a queue pair of an XRC domain by its number. It exists until the last of its objects is destroyed.

use super::Qp;
use super::create::plain;
use crate::abi::*;
use crate::objects::xrc::Xrcd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, Uses, all, find, publish};
use crate::support::turn::Turn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Opens a queue pair of an XRC domain by its number.
    pub(crate) fn open(attr: &ibv_qp_open_attr) -> Result<Arc<Self>, Errno> {
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        let mask = attr.comp_mask;
        if mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        if mask & needed != needed || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Errno::INVALID);
        }
        let xrcd = find::<Xrcd>(attr.xrcd)?;
        let uses = Uses::of(&*xrcd)?;
        let of_domain = |qp: &Qp| {
            qp.number() == attr.qp_num && qp.xrc.as_ref().is_some_and(|xrc| Arc::ptr_eq(xrc, xrcd.inner()))
        };
        // Count the new object before another thread can destroy the last one.
        let counted = |qp: &Arc<Qp>| {
            let more = |handles: usize| (handles > 0).then(|| handles + 1);
            of_domain(qp) && qp.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
        };
        let qp = all::<Qp>().into_iter().find(counted).ok_or_else(|| {
            Errno::INVALID.because("no XRC receive queue pair with this number in the domain")
        })?;
        let mut init = qp.init;
        if mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        let opened = Qp {
            c: CCell::new(plain(&qp.context, None, &qp.kind, &init)),
            kind: qp.kind.clone(),
            init,
            xrc: qp.xrc.clone(),
            attr: Arc::clone(&qp.attr),
            builder: CCell::default(),
            turn: Turn::default(),
            handles: Arc::clone(&qp.handles),
            relay: None,
            _pd: None,
            context: Arc::clone(&qp.context),
        };
        let opened = publish(opened, uses);
        opened.note_state();
        Ok(opened)
    }
}
