//! One end of a connection: an adapter and a queue pair with these options.

use crate::op::Receives;
use crate::options::Options;
use ironwarp::completion::{Completion, CompletionQueue, Opcode};
use ironwarp::memory::{Access, Buffer, MemoryRegion};
use ironwarp::queue::{QueuePair, SharedReceiveQueue};
use ironwarp::{Adapter, ProtectionDomain};
use ironwarp_testkit::native::Completions;

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    /// The source of receives, if not the queue pair itself.
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
    pub(crate) adapter: Adapter,
}

impl End {
    pub(crate) fn new(options: &Options, receives: Receives, passive: bool) -> Self {
        let adapter = Adapter::open(options.config(passive)).unwrap();
        let cq = adapter.completion_queue(64).unwrap();
        let domain = adapter.protection_domain();
        let builder = domain.queue_pair(&cq).completes(options.completes());
        let (builder, srq) = match receives {
            Receives::Own => (builder, None),
            Receives::Shared => {
                let srq = domain.shared_receive_queue(16);
                (builder.srq(&srq), Some(srq))
            }
            Receives::Xrc => {
                let xrc = adapter.xrc_domain();
                let srq = domain.xrc_receive_queue(&xrc, &cq, 16);
                (builder.xrc_target(&xrc), Some(srq))
            }
        };
        Self { qp: builder.create().unwrap(), srq, cq, domain, adapter }
    }

    pub(crate) fn region(&self, len: usize, access: Access) -> MemoryRegion {
        self.domain.register(Buffer::new(len).unwrap(), access).unwrap()
    }

    /// Waits for the next completion, which must be a success of this request.
    #[track_caller]
    pub(crate) fn done(&self, opcode: Opcode, id: u64) -> Completion {
        let completion = Completions::done(self, opcode, id);
        assert_eq!(completion.qp, self.qp.id());
        completion
    }

    /// Checks that nothing else has completed.
    #[track_caller]
    pub(crate) fn nothing_more(&self) {
        let completion = self.cq.poll_one().unwrap();
        assert!(completion.is_none(), "{completion:?}");
    }
}

impl Completions for End {
    fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}
