use ironwarp::prelude::*;
use std::{error::Error, net::SocketAddr};

fn main() -> Result<(), Box<dyn Error>> {
    let Some(address) = std::env::args().nth(1) else { return server() };
    client(address.parse()?)
}

fn server() -> Result<(), Box<dyn Error>> {
    let adapter = Adapter::new()?;
    let (domain, cq) = (adapter.protection_domain(), adapter.completion_queue(16)?);
    let region = domain.register(Buffer::new(32)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let qp = domain.queue_pair(&cq).create()?;
    qp.post_receive(1, &[])?;

    let listener = adapter.listen("127.0.0.1:0".parse()?)?;
    println!("listening at {}", listener.local_addr()?);
    let incoming = listener.accept(None)?;
    incoming.accept(&qp, &AcceptOptions::new().private_data(&region.remote_addr(0)?.to_bytes()))?;

    cq.wait(None)?.success()?;
    println!("my memory says: {}", String::from_utf8(region.to_vec()?)?.trim_end_matches('\0'));
    Ok(())
}

fn client(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let adapter = Adapter::new()?;
    let cq = adapter.completion_queue(16)?;
    let domain = adapter.protection_domain();
    let qp = domain.queue_pair(&cq).completes(Completes::WhenAcknowledged).create()?;
    let established = qp.connect(server, &ConnectOptions::new())?;
    let there = RemoteAddr::from_bytes(&established.private_data).ok_or("the server sent no address")?;

    qp.post_send(WorkRequest::write_inline(1, b"hello from afar", there).unsignaled())?;
    qp.post_send(WorkRequest::send(2, &[]))?;
    cq.wait(None)?.success()?;
    Ok(())
}
