//! What the types prevent: none of these blocks compiles. Documentation only; its tests are the point.
//!
//! Registered memory is the region's alone: nobody keeps a handle to the buffer.
//! ```compile_fail,E0382
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! let buffer = ironwarp::Buffer::new(64).unwrap();
//! let region = domain.register(buffer, ironwarp::Access::LOCAL_WRITE);
//! buffer.len();
//! ```
//!
//! There is no reference to memory that a peer may write, neither shared ...
//! ```compile_fail,E0308
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! # let region = domain.register(ironwarp::Buffer::new(64).unwrap(), ironwarp::Access::LOCAL_WRITE).unwrap();
//! let bytes: &[u8] = &region;
//! ```
//! ... nor by index.
//! ```compile_fail,E0608
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! # let region = domain.register(ironwarp::Buffer::new(64).unwrap(), ironwarp::Access::LOCAL_WRITE).unwrap();
//! let first = region[0];
//! ```
//!
//! What was deregistered names nothing any more.
//! ```compile_fail,E0382
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! # let region = domain.register(ironwarp::Buffer::new(64).unwrap(), ironwarp::Access::LOCAL_WRITE).unwrap();
//! region.deregister();
//! region.slice(0, 8);
//! ```
//!
//! Memory that the program keeps itself is registered by those who say that they thought about it.
//! ```compile_fail,E0133
//! # let domain = ironwarp::Adapter::new().unwrap().protection_domain();
//! let mut byte = 0;
//! domain.register_raw(&mut byte, 1, ironwarp::Access::LOCAL_WRITE);
//! ```
//!
//! A peer is accepted or rejected, once.
//! ```compile_fail,E0382
//! # let listener = ironwarp::Adapter::new().unwrap().listen("127.0.0.1:0".parse().unwrap()).unwrap();
//! let incoming = listener.accept(None).unwrap();
//! incoming.reject(b"no");
//! incoming.reject(b"no, again");
//! ```
//!
//! Only a Send can be solicited, or invalidate.
//! ```compile_fail,E0599
//! # let place = ironwarp::Place::default();
//! ironwarp::WorkRequest::write_inline(1, b"hello", place).solicited();
//! ```
//!
//! A request that was made and not posted is found by the compiler.
//! ```compile_fail
//! #![deny(unused_must_use)]
//! ironwarp::WorkRequest::send_inline(1, b"hello");
//! ```
//! So is the answer of `arm` that nobody heard.
//! ```compile_fail
//! #![deny(unused_must_use)]
//! # let cq = ironwarp::Adapter::new().unwrap().completion_queue(8).unwrap();
//! cq.arm(ironwarp::Arm::Next);
//! ```
