//! Documentation tests of misuse that the compiler rejects: none of these blocks may compile. The module has no code.
//!
//! A region owns its memory: no handle to the buffer is left.
//! ```compile_fail,E0382
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! let buffer = ironwarp::memory::Buffer::new(64).unwrap();
//! let region = domain.register(buffer, ironwarp::memory::Access::LOCAL_WRITE);
//! buffer.len();
//! ```
//!
//! There is no reference to memory that a peer may write, neither to a slice ...
//! ```compile_fail,E0308
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! # let region = domain.register(ironwarp::memory::Buffer::new(64).unwrap(), ironwarp::memory::Access::LOCAL_WRITE).unwrap();
//! let bytes: &[u8] = &region;
//! ```
//! ... nor to an element.
//! ```compile_fail,E0608
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! # let region = domain.register(ironwarp::memory::Buffer::new(64).unwrap(), ironwarp::memory::Access::LOCAL_WRITE).unwrap();
//! let first = region[0];
//! ```
//!
//! A deregistered region cannot be used.
//! ```compile_fail,E0382
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! # let region = domain.register(ironwarp::memory::Buffer::new(64).unwrap(), ironwarp::memory::Access::LOCAL_WRITE).unwrap();
//! region.deregister();
//! region.slice(..8);
//! ```
//!
//! A chunk that a request owns cannot be touched, ...
//! ```compile_fail,E0382
//! # fn send(_: ironwarp::memory::Chunk) {}
//! # fn example(chunk: ironwarp::memory::Chunk) {
//! send(chunk);
//! chunk.to_vec();
//! # }
//! ```
//! ... because there is only one handle to it, ...
//! ```compile_fail,E0599
//! # fn example(chunk: ironwarp::memory::Chunk) {
//! let another = chunk.clone();
//! # }
//! ```
//! ... and only its owner writes to it.
//! ```compile_fail,E0596
//! # fn example(chunk: &ironwarp::memory::Chunk) {
//! chunk.write(0, b"hello");
//! # }
//! ```
//!
//! A view borrows its memory: it does not outlive the region, ...
//! ```compile_fail,E0505
//! # fn example(region: ironwarp::memory::MemoryRegion) {
//! let counter = region.view::<u64>(0).unwrap();
//! drop(region);
//! counter.load();
//! # }
//! ```
//! ... and a chunk that is viewed cannot be moved into a request.
//! ```compile_fail,E0505
//! # fn send(_: ironwarp::memory::Chunk) {}
//! # fn example(mut chunk: ironwarp::memory::Chunk) {
//! let counter = chunk.view::<u64>(0).unwrap();
//! send(chunk);
//! counter.load();
//! # }
//! ```
//!
//! Only plain data can be viewed: some bytes are no `bool`.
//! ```compile_fail,E0277
//! # fn example(region: ironwarp::memory::MemoryRegion) {
//! region.view::<bool>(0);
//! # }
//! ```
//!
//! Registering memory that the program continues to own is unsafe.
//! ```compile_fail,E0133
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! let mut byte = 0;
//! domain.register_raw(&mut byte, 1, ironwarp::memory::Access::LOCAL_WRITE);
//! ```
//!
//! A connection request is accepted or rejected, once.
//! ```compile_fail,E0382
//! # let listener = ironwarp::Adapter::new().unwrap().listen("127.0.0.1:0".parse().unwrap()).unwrap();
//! let incoming = listener.accept(None).unwrap();
//! incoming.reject(b"no");
//! incoming.reject(b"no, again");
//! ```
//!
//! A Write cannot be solicited: it consumes no receive, so that it has no completion at the peer.
//! ```compile_fail,E0599
//! # let addr = ironwarp::memory::RemoteAddr::default();
//! ironwarp::queue::WorkRequest::write_inline(1, b"hello", addr).solicited();
//! ```
//!
//! The compiler finds a request that is created and not posted,
//! ```compile_fail
//! #![deny(unused_must_use)]
//! ironwarp::queue::WorkRequest::send_inline(1, b"hello");
//! ```
//! and an ignored result of `arm`.
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # let cq = ironwarp::Adapter::new().unwrap().completion_queue(8).unwrap();
//! cq.arm(ironwarp::completion::Arm::Next);
//! ```
//!
//! An asynchronous request owns its buffers: the program cannot touch them while the adapter uses them.
//! ```compile_fail,E0382
//! # async fn send(qp: ironwarp::tokio::QueuePair, message: ironwarp::tokio::Message) {
//! let mut chunk = message.into_chunk();
//! let sent = qp.send(chunk).unwrap();
//! chunk.write(0, b"too late");
//! # sent.await.unwrap();
//! # }
//! ```
