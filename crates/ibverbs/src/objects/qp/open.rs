//! Opens an existing XRC receive queue pair by its number (`ibv_open_qp`). Each open adds a C object for the queue
//! pair, which exists until the last of these objects is destroyed.

use super::Qp;
use super::create::c_structure;
use crate::abi::*;
use crate::objects::xrc::Xrcd;
use crate::support::errno::Errno;
use crate::support::object::{CCell, Uses, all, find, publish};
use crate::support::turn::Turn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Qp {
    /// Opens the XRC receive queue pair that has the number and the XRC domain in `attr`. Returns a new object for it.
    pub(crate) fn open(attr: &ibv_qp_open_attr) -> Result<Arc<Self>, Errno> {
        let required = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        let mask = attr.comp_mask;
        if mask & !(required | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(Errno::UNSUPPORTED);
        }
        if mask & required != required || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Errno::INVALID);
        }
        let xrcd = find::<Xrcd>(attr.xrcd)?;
        let uses = Uses::of(&*xrcd)?;
        let matches = |qp: &Qp| {
            qp.number() == attr.qp_num && qp.xrc.as_ref().is_some_and(|xrc| Arc::ptr_eq(xrc, xrcd.inner()))
        };
        // Count the new object while searching: another thread may be destroying the last object. A count of zero
        // means that it has, so the queue pair no longer exists.
        let count_if_matching = |qp: &Arc<Qp>| {
            let increment = |handles: usize| (handles > 0).then(|| handles + 1);
            matches(qp) && qp.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment).is_ok()
        };
        let qp = all::<Qp>().into_iter().find(count_if_matching).ok_or_else(|| {
            Errno::INVALID.because("no XRC receive queue pair with this number in the domain")
        })?;
        let mut init = qp.init;
        if mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            init.qp_context = attr.qp_context;
        }
        let opened = Qp {
            c: CCell::new(c_structure(&qp.context, None, &qp.kind, &init)),
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
        opened.refresh_state();
        Ok(opened)
    }
}
