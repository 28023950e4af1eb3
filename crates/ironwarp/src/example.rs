//! Two connected queue pairs in one process, for the examples in the documentation.

use crate::{
    AcceptOptions, Access, Adapter, Buffer, CompletionQueue, ConnectOptions, MemoryRegion, ProtectionDomain,
    QueuePair,
};
use std::error::Error;
use std::time::Duration;

/// One end of a connection, with all objects that it needs.
#[derive(Debug)]
pub struct End {
    /// A queue pair that is connected to the other end.
    pub qp: QueuePair,
    /// The completion queue of the queue pair.
    pub cq: CompletionQueue,
    /// A region of 4096 zero bytes, with all access rights.
    pub region: MemoryRegion,
    /// The protection domain of the queue pair and the region.
    pub domain: ProtectionDomain,
    /// The adapter that all other fields were created from.
    pub adapter: Adapter,
}

/// Connects a client to a server over loopback, and returns both ends: the client first.
pub fn pair() -> Result<(End, End), Box<dyn Error>> {
    let (client, server) = (create_end()?, create_end()?);
    let listener = server.adapter.listen("127.0.0.1:0".parse()?)?;
    client.qp.start_connect(listener.local_addr()?, &ConnectOptions::new())?;
    let incoming = listener.accept(Duration::from_secs(10)).ok_or("no connection request")?;
    incoming.accept(&server.qp, &AcceptOptions::new())?;
    client.qp.wait_connected(Duration::from_secs(10))?;
    Ok((client, server))
}

/// Creates an adapter with a queue pair that is not connected yet.
fn create_end() -> Result<End, Box<dyn Error>> {
    let adapter = Adapter::new()?;
    let cq = adapter.completion_queue(64)?;
    let domain = adapter.protection_domain();
    let region = domain.register(Buffer::new(4096)?, Access::all())?;
    Ok(End { qp: domain.queue_pair(&cq).create()?, cq, region, domain, adapter })
}
