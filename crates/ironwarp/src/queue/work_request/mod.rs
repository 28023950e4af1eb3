//! Work requests: what programs post to send queues.

mod message;
mod rdma;
mod registration;
mod request;

pub use message::{SendRequest, WriteImmRequest};
pub use request::WorkRequest;
