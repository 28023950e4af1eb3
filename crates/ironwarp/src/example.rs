//! Two connected queue pairs in one process, and an iSCSI target, for the examples in the documentation.

use crate::prelude::*;
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
    let incoming = listener.accept(Duration::from_secs(10))?;
    incoming.accept(&server.qp, &AcceptOptions::new())?;
    client.qp.wait_connected(Duration::from_secs(10))?;
    Ok((client, server))
}

/// Starts an iSCSI target that expects no login, and returns its address. It completes each command without an error, and
/// sends bytes 0xa5 to commands that read.
pub fn iscsi_target() -> std::io::Result<std::net::SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || listener.accept().and_then(|(connection, _)| serve_commands(connection)));
    Ok(address)
}

/// Completes commands, and ignores other PDUs, until the initiator closes the connection.
fn serve_commands(mut connection: std::net::TcpStream) -> std::io::Result<()> {
    use ironwarp_wire::iscsi::{DataIn, InitiatorPdu, NO_TASK, Residual, SequenceNumbers, TargetPdu};
    use std::io::{Read, Write};
    let mut header = [0; crate::iscsi::HEADER_LEN];
    for stat_sn in 0.. {
        connection.read_exact(&mut header)?;
        let Ok(InitiatorPdu::Command(command)) = InitiatorPdu::parse(&header) else { continue };
        let numbers =
            SequenceNumbers { stat_sn, exp_cmd_sn: command.cmd_sn + 1, max_cmd_sn: command.cmd_sn + 128 };
        let data = DataIn {
            last: true,
            acknowledge: false,
            status: Some((0, Residual::None)),
            lun: 0,
            task: command.task,
            target_task: NO_TASK,
            numbers,
            data_sn: 0,
            offset: 0,
        };
        connection.write_all(&TargetPdu::DataIn(data).emit(command.expected_len))?;
        connection.write_all(&vec![0xa5; command.expected_len as usize])?;
    }
    Ok(())
}

/// Creates an adapter with a queue pair that is not connected yet.
fn create_end() -> Result<End, Box<dyn Error>> {
    let adapter = Adapter::new()?;
    let cq = adapter.completion_queue(64)?;
    let domain = adapter.protection_domain();
    let region = domain.register(Buffer::new(4096)?, Access::all())?;
    Ok(End { qp: domain.queue_pair(&cq).create()?, cq, region, domain, adapter })
}

/// One end of a connection with asynchronous methods, with all objects that it needs.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct AsyncEnd {
    /// A queue pair that is connected to the other end.
    pub qp: crate::tokio::QueuePair,
    /// The driver of the queue pair.
    pub driver: crate::tokio::Driver,
    /// A pool of 16 chunks of 256 bytes.
    pub pool: crate::memory::Pool,
    /// A region of 4096 zero bytes, with all access rights.
    pub region: MemoryRegion,
    /// The protection domain of the queue pair, the pool and the region.
    pub domain: ProtectionDomain,
    /// The adapter that all other fields were created from.
    pub adapter: Adapter,
}

/// Runs an example with two connected ends: the client first.
#[cfg(feature = "tokio")]
pub fn run_async(
    example: impl AsyncFnOnce(AsyncEnd, AsyncEnd) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    use crate::tokio::Listener;
    let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, server) = (create_async_end()?, create_async_end()?);
        let listener = Listener::new(server.adapter.listen("127.0.0.1:0".parse()?)?)?;
        let native = client.qp.clone();
        let to = listener.local_addr()?;
        let connecting =
            ::tokio::spawn(async move { native.connect(to, &ConnectOptions::new()).await.map(drop) });
        listener.accept().await?.accept(&server.qp, &AcceptOptions::new()).await?;
        connecting.await??;
        example(client, server).await
    })
}

/// Creates an adapter with an asynchronous queue pair that is not connected yet.
#[cfg(feature = "tokio")]
fn create_async_end() -> Result<AsyncEnd, Box<dyn Error>> {
    let adapter = Adapter::new()?;
    let domain = adapter.protection_domain();
    let driver = crate::tokio::Driver::new(adapter.completion_queue(64)?)?;
    let qp = driver.create(domain.queue_pair(driver.cq()))?;
    let pool = crate::memory::Pool::new(domain.register(Buffer::new(4096)?, Access::all())?, 256);
    let region = domain.register(Buffer::new(4096)?, Access::all())?;
    Ok(AsyncEnd { qp, driver, pool, region, domain, adapter })
}

#[cfg(feature = "tokio")]
impl AsyncEnd {
    /// Takes a chunk that contains `bytes`.
    pub fn chunk_of(&self, bytes: &[u8]) -> Result<crate::memory::Chunk, Box<dyn Error>> {
        let mut chunk = self.pool.take().ok_or("no chunk is free")?;
        chunk.set_len(bytes.len())?;
        chunk.write(0, bytes)?;
        Ok(chunk)
    }

    /// Takes free chunks: up to this many.
    pub fn chunks(&self, count: usize) -> Vec<crate::memory::Chunk> {
        (0..count).map_while(|_| self.pool.take()).collect()
    }
}
