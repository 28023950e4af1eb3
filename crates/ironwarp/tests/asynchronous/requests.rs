//! Each kind of request, and how requests end.

use super::end::{CHUNK, End, connect, connect_pairs, fill};
use super::run;
use ironwarp::connection::{AcceptOptions, ConnectError, ConnectOptions};
use ironwarp::memory::{Access, Buffer};
use ironwarp::queue::{PostError, QpError, WorkRequest};
use ironwarp::tokio::{Driver, Error};
use ironwarp_testkit::native::pattern;
use std::time::Duration;

#[test]
fn every_request_returns_its_buffers_and_moves_its_bytes() {
    run(async {
        let (client, server) = (End::new(8), End::new(8));
        let (near, far) = connect(&client, &server).await;

        // Send and receive, of one chunk and of several.
        let bytes = pattern(1, CHUNK);
        let received = far.receive(server.pool.take().unwrap()).unwrap();
        let (sent, chunk) = near.send(client.chunk_of(&bytes)).unwrap().await.unwrap();
        let (completion, other) = received.await.unwrap();
        assert_eq!((sent.qp, completion.byte_len as usize), (near.id(), CHUNK));
        assert_eq!((chunk.to_vec().unwrap(), other.to_vec().unwrap()), (bytes.clone(), bytes));
        let list = vec![fill(chunk, b"scatter"), client.chunk_of(b" and gather")];
        let received = far.receive(vec![other, server.pool.take().unwrap()]).unwrap();
        assert_eq!(near.send(list).unwrap().await.unwrap().1.len(), 2);
        let (completion, parts) = received.await.unwrap();
        assert_eq!((completion.byte_len, parts.len()), (18, 2));
        let mut found = [0; 18];
        parts[0].read(0, &mut found).unwrap();
        assert_eq!(&found, b"scatter and gather");

        // Inline, and without buffers.
        let received = far.receive(server.pool.take().unwrap()).unwrap();
        near.send_inline(b"inline").unwrap().await.unwrap();
        let (completion, received_inline) = received.await.unwrap();
        let mut found = [0; 6];
        received_inline.read(0, &mut found).unwrap();
        assert_eq!((completion.byte_len, &found), (6, b"inline"));
        let received = far.receive(()).unwrap();
        near.post(WorkRequest::send(9, &[]).unsignaled(), ()).unwrap().await.unwrap();
        assert_eq!(received.await.unwrap().0.byte_len, 0);

        // Write and read.
        let region = server.domain.register(Buffer::new(CHUNK).unwrap(), Access::all()).unwrap();
        let (bytes, to) = (pattern(2, CHUNK), region.remote_addr(0).unwrap());
        drop(near.write(client.chunk_of(&bytes), to).unwrap().await.unwrap());
        let (_, chunk) = near.read(client.chunk_of(&[0; CHUNK]), to).unwrap().await.unwrap();
        assert_eq!((chunk.to_vec().unwrap(), region.to_vec().unwrap()), (bytes.clone(), bytes));

        drop((parts, received_inline, chunk));
        assert_eq!((client.pool.available(), server.pool.available()), (8, 8));
        let (_, _) = tokio::join!(near.disconnect(), far.closed());
        assert!(matches!(far.error(), Some(QpError::Closed)), "{:?}", far.error());
    });
}

#[test]
fn a_refused_request_returns_its_buffers() {
    run(async {
        let end = End::new(1);
        let qp = end.queue_pair();
        let refused = qp.send(end.chunk_of(b"hello")).unwrap_err();
        assert!(matches!(refused.error, Error::Post(PostError::NotConnected)), "{refused:?}");
        assert_eq!(refused.buffers.to_vec().unwrap(), b"hello");
        qp.disconnect().await; // returns at once
    });
}

/// Receives are posted before the queue pair connects, which fails: nothing else would complete them.
#[test]
fn receives_of_a_queue_pair_that_never_connects_are_flushed() {
    run(async {
        let end = End::new(2);
        // Never connected, and dropped.
        let qp = end.queue_pair();
        let received = qp.receive(end.pool.take().unwrap()).unwrap();
        drop(qp);
        let failed = received.await.unwrap_err();
        assert!(
            matches!(&failed.error, Error::Request(error) if error.0.cause.as_deref() == Some(&QpError::Moved))
        );
        assert!(failed.buffers.is_some());
        drop(failed);

        // Rejected.
        let listener = end.listen();
        let (qp, to) = (end.queue_pair(), listener.local_addr().unwrap());
        let received = qp.receive(end.pool.take().unwrap()).unwrap();
        let queue = qp.receive_queue([end.pool.take().unwrap()]).unwrap();
        let rejecting = async { listener.accept().await.unwrap().reject(b"no").unwrap() };
        let (connected, ()) = tokio::join!(async { qp.connect(to, &ConnectOptions::new()).await }, rejecting);
        assert!(matches!(connected.unwrap_err(), ConnectError::Rejected { .. }));
        qp.closed().await;
        assert!(received.await.is_err());
        assert!(queue.recv().await.is_err(), "it says why");
        assert!(queue.recv().await.unwrap().is_none());
        assert_eq!(end.pool.available(), 2);
    });
}

#[test]
fn a_receive_queue_returns_all_messages_and_then_the_end() {
    run(async {
        let (client, server) = (End::new(4), End::new(2));
        let (near, far) = (client.queue_pair(), server.queue_pair());
        let queue = far.receive_queue(server.take(2)).unwrap();
        connect_pairs(&near, &far, &server).await;
        // More messages than receives: dropping a message posts its chunk again.
        for number in 0..10 {
            drop(near.send_inline(&[number; 3]).unwrap());
        }
        near.send_inline(b"the end").unwrap().await.unwrap();
        let closing = tokio::spawn(async move { near.disconnect().await });
        for number in 0..10 {
            let message = queue.recv().await.unwrap().unwrap();
            assert_eq!((message.qp(), message.chunk().to_vec().unwrap()), (far.id(), vec![number; 3]));
        }
        let last = queue.recv().await.unwrap().unwrap();
        assert_eq!(last.into_chunk().to_vec().unwrap(), b"the end");
        assert!(queue.recv().await.unwrap().is_none());
        assert!(queue.recv().await.unwrap().is_none());
        far.disconnect().await;
        closing.await.unwrap();
        assert_eq!(server.pool.available(), server.chunks);
    });
}

/// A server that holds all messages when the connection ends must be told, although no receive is posted.
#[test]
fn a_receive_queue_without_posted_receives_ends() {
    run(async {
        let (client, server) = (End::new(1), End::new(1));
        let (near, far) = (client.queue_pair(), server.queue_pair());
        let queue = far.receive_queue(server.take(1)).unwrap();
        connect_pairs(&near, &far, &server).await;
        near.send_inline(b"hello").unwrap().await.unwrap();
        let message = queue.recv().await.unwrap().unwrap();
        tokio::join!(near.disconnect(), far.closed());
        assert!(queue.recv().await.unwrap().is_none());
        assert_eq!(message.chunk().to_vec().unwrap(), b"hello");
        drop(message);
        assert!(queue.recv().await.unwrap().is_none());
    });
}

#[test]
fn messages_can_be_sent_back_and_are_received_again() {
    run(async {
        let (client, server) = (End::new(4), End::new(1));
        let (near, far) = (client.queue_pair(), server.queue_pair());
        let queue = far.receive_queue(server.take(1)).unwrap();
        let answers = near.receive_queue(client.take(2)).unwrap();
        connect_pairs(&near, &far, &server).await;
        for round in 0..100_u8 {
            drop(near.send(client.chunk_of(&pattern(round, 100))).unwrap());
            // The chunk is posted again when the answer was sent: the server has only this one.
            drop(far.send(queue.recv().await.unwrap().unwrap()).unwrap());
            let answer = answers.recv().await.unwrap().unwrap();
            assert_eq!(answer.chunk().to_vec().unwrap(), pattern(round, 100));
        }
    });
}

#[test]
fn one_receive_queue_serves_many_connections_and_survives_failures() {
    run(async {
        let (client, server) = (End::new(1), End::new(4));
        let srq = server.domain.shared_receive_queue(4);
        let queue = server.driver.receive_queue(&srq, server.take(4)).unwrap();
        let mut pairs = Vec::new();
        for _ in 0..5 {
            let builder = server.domain.queue_pair(server.driver.cq()).srq(&srq);
            let (near, far) = (client.queue_pair(), server.driver.create(builder).unwrap());
            connect_pairs(&near, &far, &server).await;
            pairs.push((near, far));
        }
        for round in 0..20_usize {
            let (near, far) = &pairs[round % pairs.len()];
            near.send_inline(&round.to_le_bytes()).unwrap().await.unwrap();
            let message = queue.recv().await.unwrap().unwrap();
            assert_eq!(
                (message.qp(), message.chunk().to_vec().unwrap()),
                (far.id(), round.to_le_bytes().into())
            );
            if round == 12 {
                // Too long for the receive, which ends this connection only.
                let (near, far) = pairs.pop().unwrap();
                let chunk = client.pool.take().unwrap();
                let sge = chunk.as_sge();
                drop(near.post(WorkRequest::send(0, &[sge, sge]), chunk).unwrap());
                tokio::join!(near.closed(), far.closed());
                assert!(matches!(far.error(), Some(QpError::Protocol(_))), "{:?}", far.error());
            }
        }
        drop((pairs, queue));
    });
}

#[test]
fn a_queue_pair_must_use_the_completion_queue_of_its_driver() {
    run(async {
        let end = End::new(1);
        let other = end.adapter.completion_queue(1).unwrap();
        for builder in
            [end.domain.queue_pair(&other), end.domain.queue_pair(end.driver.cq()).receive_cq(&other)]
        {
            let error = end.driver.create(builder).unwrap_err();
            assert_eq!(error.to_string(), "the queue pair must use the completion queue of its driver");
        }
        Driver::new(end.driver.cq().clone()).expect_err("it has a driver");
    });
}

#[test]
fn requests_fail_when_the_runtime_shuts_down_and_chunks_return_when_the_connection_closes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, server, near, far, posted, queue) = runtime.block_on(async {
        let (client, server) = (End::new(4), End::new(4));
        let (near, far) = (client.queue_pair(), server.queue_pair());
        let queue = far.receive_queue(server.take(1)).unwrap();
        let early = server.queue_pair().receive(server.pool.take().unwrap()).unwrap();
        connect_pairs(&near, &far, &server).await;
        let posted = vec![
            near.receive(client.pool.take().unwrap()).unwrap(),
            far.receive(server.pool.take().unwrap()).unwrap(),
            early,
        ];
        (client, server, near, far, posted, queue)
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(async {
        for posted in posted {
            let failed = posted.await.unwrap_err();
            assert!(matches!(failed.error, Error::RuntimeShutDown | Error::Request(_)), "{failed:?}");
        }
        assert!(matches!(queue.recv().await, Err(Error::RuntimeShutDown)));
        let refused = near.send(client.pool.take().unwrap()).unwrap_err();
        assert!(matches!(refused.error, Error::RuntimeShutDown), "{refused:?}");
        drop(refused);
        // The connection is open, so the peer could still write to these chunks.
        assert_eq!((client.pool.available(), server.pool.available()), (3, 2));
        let late = server.queue_pair();
        let error = late.connect("127.0.0.1:1".parse().unwrap(), &ConnectOptions::new()).await.unwrap_err();
        assert!(error.to_string().contains("has shut down"), "{error}");
        tokio::join!(near.disconnect(), far.disconnect());
        assert_eq!((client.pool.available(), server.pool.available()), (4, 4));
    });
    drop((client, server));
}

/// Others' completions fill the completion queue behind the back of the driver.
#[test]
fn all_requests_fail_when_the_completion_queue_overflows() {
    run(async {
        let (client, server) = (End::new(4), End::new(4));
        let (near, far) = (client.queue_pair(), server.queue_pair());
        let queue = far.receive_queue(server.take(1)).unwrap();
        connect_pairs(&near, &far, &server).await;
        let received = far.receive(server.pool.take().unwrap()).unwrap();
        let later = far.receive(server.pool.take().unwrap()).unwrap();
        let events = server.adapter.async_events().unwrap();
        server.driver.cq().resize(1).unwrap();
        for _ in 0..3 {
            drop(near.send_inline(b"overflow").unwrap());
        }
        // Blocks the driver, too, so that nobody polls the queue.
        events.wait(super::SOON).expect("it overflows");
        for posted in [received, later] {
            let failed = posted.await.unwrap_err();
            assert!(matches!(failed.error, Error::Overrun(_)), "{failed:?}");
        }
        let first = queue.recv().await.unwrap().expect("it was in the queue before");
        assert_eq!(first.chunk().to_vec().unwrap(), b"overflow");
        assert!(matches!(queue.recv().await, Err(Error::Overrun(_))));
        drop(first);
        far.closed().await;
        assert_eq!(server.pool.available(), 4);
    });
}

/// Each Write completes while the driver, on another thread, is about to sleep after the previous one. Only this
/// completion can wake it: no other request is outstanding.
#[test]
fn no_completion_is_missed_between_polling_and_arming() {
    const ROUNDS: usize = 5_000;
    let drivers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, server) = {
        let _drivers = drivers.enter();
        (End::new(1), End::new(1))
    };
    run(async {
        let (near, _far) = connect(&client, &server).await;
        let region = server.domain.register(Buffer::new(8).unwrap(), Access::all()).unwrap();
        for round in 0..ROUNDS {
            let request = WorkRequest::write_inline(0, &round.to_le_bytes(), region.remote_addr(0).unwrap());
            near.post(request, ()).unwrap().await.unwrap();
        }
        near.disconnect().await;
        assert_eq!(region.to_vec().unwrap(), (ROUNDS - 1).to_le_bytes());
    });
}

#[test]
fn connecting_times_out_and_the_attempt_ends_with_the_queue_pair() {
    run(async {
        let (client, server) = (End::new(1), End::new(1));
        let (qp, listener) = (client.queue_pair(), server.listen());
        let (to, options) =
            (listener.local_addr().unwrap(), ConnectOptions::new().timeout(Duration::from_millis(10)));
        let received = qp.receive(client.pool.take().unwrap()).unwrap();
        let error = qp.connect(to, &options).await.unwrap_err();
        assert_eq!(error.to_string(), "the peer did not answer in time");
        // The attempt goes on, until the server answers it.
        drop(qp);
        drop(listener.accept().await.unwrap());
        assert!(received.await.is_err());
    });
}

#[test]
fn accept_options_and_private_data_reach_the_other_end() {
    run(async {
        let (client, server) = (End::new(1), End::new(1));
        let (near, far, listener) = (client.queue_pair(), server.queue_pair(), server.listen());
        let (to, options) =
            (listener.local_addr().unwrap(), ConnectOptions::new().private_data(b"from client"));
        let accepting = async {
            let incoming = listener.accept().await.unwrap();
            assert_eq!(incoming.private_data(), b"from client");
            incoming.accept(&far, &AcceptOptions::new().private_data(b"from server")).await.unwrap();
        };
        let (connected, ()) = tokio::join!(near.connect(to, &options), accepting);
        assert_eq!(&*connected.unwrap().private_data, b"from server");
        assert_eq!(&*near.connected().await.unwrap().private_data, b"from server");
        assert!(near.connect(to, &options).await.is_err(), "it is connected");
        near.disconnect().await;
    });
}

/// Like `debug_output_is_short_and_identifies_the_object`.
#[test]
fn debug_output_is_short() {
    run(async {
        let (client, server) = (End::new(64), End::new(64));
        let (near, far, listener) = (client.queue_pair(), server.queue_pair(), server.listen());
        let queue = far.receive_queue(server.take(64)).unwrap();
        connect_pairs(&near, &far, &server).await;
        let posted = near.send_inline(&[0; 512]).unwrap();
        let texts = [
            (format!("{:?}", client.driver), "Driver { cq: CompletionQueue { id: "),
            (format!("{near:?}"), "QueuePair { id: "),
            (format!("{queue:?}"), "ReceiveQueue { target: QueuePair { id: "),
            (format!("{posted:?}"), "Posted { id: Some("),
            (format!("{listener:?}"), "Listener { local_addr: "),
            (format!("{:?}", queue.recv().await.unwrap().unwrap()), "Message { qp: "),
        ];
        for (text, expected) in texts {
            assert!(text.starts_with(expected) && text.len() < 400, "{text}");
        }
    });
}
