//! Two connected ends in one process, used by the examples in the documentation.

use crate::{
    AcceptOptions, Access, Adapter, Buffer, CompletionQueue, ConnectOptions, MemoryRegion, ProtectionDomain,
    QueuePair,
};
use std::error::Error;
use std::time::Duration;

/// One end of a connection.
#[derive(Debug)]
pub struct End {
    /// Connected to the other end.
    pub qp: QueuePair,
    /// The completion queue of the queue pair.
    pub cq: CompletionQueue,
    /// 4096 zero bytes, with all access rights.
    pub region: MemoryRegion,
    /// The protection domain of the queue pair and the region.
    pub domain: ProtectionDomain,
    /// The adapter of all these objects.
    pub adapter: Adapter,
}

/// Returns a connected client and server.
pub fn pair() -> Result<(End, End), Box<dyn Error>> {
    let (here, there) = (Adapter::new()?, Adapter::new()?);
    let (client, server) = (end(&here)?, end(&there)?);
    let listener = there.listen("127.0.0.1:0".parse()?)?;
    client.qp.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    let incoming = listener.accept(Duration::from_secs(10)).ok_or("no connection request")?;
    incoming.accept(&server.qp, &AcceptOptions::new())?;
    client.qp.wait_connected(Duration::from_secs(10))?;
    Ok((client, server))
}

fn end(adapter: &Adapter) -> Result<End, Box<dyn Error>> {
    let cq = adapter.completion_queue(64)?;
    let domain = adapter.protection_domain();
    let region = domain.register(Buffer::new(4096)?, Access::all())?;
    Ok(End { qp: domain.queue_pair(&cq).create()?, cq, region, domain, adapter: adapter.clone() })
}
