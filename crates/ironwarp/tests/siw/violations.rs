//! Protocol violations: Ironwarp's response to siw, siw's response to Ironwarp, and what the programs see.

use crate::end::{End, What, next};
use crate::session::{Ending, Session, Settings, Variant};
use ironwarp::completion::{Completion, Opcode, RequestError, Status};
use ironwarp::memory::{Check, RemoteAddr, Tag};
use ironwarp::protocol::{Cause, Terminate};
use ironwarp::queue::{Completes, QpError, WorkRequest};
use ironwarp_wire::ddp::DdpHeader;
use ironwarp_wire::{Operation, Protection, TaggedBuffer, UntaggedBuffer};

/// Length of a forbidden Write or Read.
const SHORT: u32 = 64;
const FLUSHED: &str = "receive: Work Request Flushed Error";
/// siw's Writes and Sends complete when they are sent; one that is incomplete when the Terminate arrives fails.
const WRITE_LEFT: &str = "write: success|write: local QP operation error|write: Work Request Flushed Error";
const READ_LEFT: &str = "read: Work Request Flushed Error|read: local QP operation error";
const STILL_AT_IT: &str = "event: local work queue catastrophic error|";
const SEND_LEFT: &str = "send: success|send: local QP operation error|send: Work Request Flushed Error";

/// Ways to use memory that is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Bounds,
    Wrap,
    Tag,
    Key,
    Rights,
    Domain,
    Gone,
}

const ALL: [Why; 7] = [Why::Bounds, Why::Wrap, Why::Tag, Why::Key, Why::Rights, Why::Domain, Why::Gone];

pub(crate) fn all(variant: Variant) -> Vec<Session> {
    let mut all = Vec::new();
    for connects in [false, true] {
        for why in ALL {
            all.extend([write_by_siw(why), read_by_siw(why)].map(|session| session.connects(connects)));
        }
        all.extend(
            [too_long_by_siw(), invalidate_by_siw(), waits(), strict()].map(|it| it.connects(connects)),
        );
        for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
            // In revision 1 it is unknown whether siw serves Reads, so none is sent for acknowledgements.
            let seen = if variant == Variant::V1 && !connects { Completes::WhenSent } else { completes };
            let mut sessions: Vec<Session> =
                ALL.into_iter().flat_map(|why| [write_by_us(why, seen), read_by_us(why)]).collect();
            sessions.extend([too_long_by_us(seen), no_receive(seen), after_invalidation(seen)]);
            if connects || completes == Completes::WhenSent {
                sessions.push(bad_invalidate_by_us(connects));
            }
            all.extend(sessions.into_iter().map(|session| session.connects(connects).completes(completes)));
        }
    }
    all
}

// --- Violations by siw ---

impl Why {
    const fn word(self) -> &'static str {
        match self {
            Self::Bounds => "bounds",
            Self::Wrap => "wrap",
            Self::Tag => "tag",
            Self::Key => "key",
            Self::Rights => "rights",
            Self::Domain => "domain",
            Self::Gone => "gone",
        }
    }

    /// The failing check at our end.
    const fn check(self) -> Check {
        match self {
            Self::Bounds => Check::Range,
            Self::Wrap => Check::Wrap,
            Self::Tag | Self::Gone => Check::Valid,
            Self::Key => Check::Instance,
            Self::Rights => Check::Right,
            Self::Domain => Check::Domain,
        }
    }

    /// The Terminate for a Write (RFC 5041 §7.2 has no code for missing rights, RFC 5040 figure 9 has).
    const fn of_write(self) -> Cause {
        Cause::TaggedBuffer(match self {
            Self::Rights => return Cause::Protection(Protection::Access),
            Self::Bounds => TaggedBuffer::Bounds,
            Self::Wrap => TaggedBuffer::Wrap,
            Self::Tag | Self::Gone | Self::Key => TaggedBuffer::Tag,
            Self::Domain => TaggedBuffer::Stream,
        })
    }

    /// The Terminate for a Read (RFC 5040 figure 9).
    const fn of_read(self) -> Cause {
        Cause::Protection(match self {
            Self::Rights => Protection::Access,
            Self::Bounds => Protection::Bounds,
            Self::Wrap => Protection::Wrap,
            Self::Tag | Self::Gone | Self::Key => Protection::Tag,
            Self::Domain => Protection::Stream,
        })
    }
}

/// Checks the end of a stream in which siw violated memory protection: the memory did not change.
fn denied(end: &mut End, why: Why) {
    let text = end.wait_for_end();
    let error = end.qp.error().unwrap();
    let QpError::Remote(denied) = &error else { panic!("{text}") };
    assert_eq!((denied.check, denied.len), (why.check(), SHORT.into()), "{text}");
    end.written(0);
    let receive = next(&end.received, "a receive to be flushed");
    assert_eq!(receive.status, Status::Flushed);
}

fn write_by_siw(why: Why) -> Session {
    let siw = format!("connect advert bad-write={} see untouched", why.word());
    Session::new(&format!("siw writes: {why:?}"), siw, move |end| denied(end, why))
        .ending(Ending::Ours(why.of_write()))
        .seen(&[WRITE_LEFT, FLUSHED, STILL_AT_IT])
}

fn read_by_siw(why: Why) -> Session {
    let siw = format!("connect advert bad-read={} see untouched", why.word());
    Session::new(&format!("siw reads: {why:?}"), siw, move |end| denied(end, why))
        .ending(Ending::Ours(why.of_read()))
        .seen(&[READ_LEFT, FLUSHED, STILL_AT_IT])
}

fn too_long_by_siw() -> Session {
    let ours = |end: &mut End| {
        let receive = next(&end.received, "a receive to fail");
        assert_eq!(receive.status, Status::LocalLength, "{receive:?}");
        assert_eq!(
            end.wait_for_end(),
            "protocol violation by the peer: message of at least 260 bytes exceeds its receive of 256"
        );
    };
    Session::new("siw sends more than a receive holds", "connect advert bad-send=260 see", ours)
        .ending(Ending::Ours(Cause::UntaggedBuffer(UntaggedBuffer::TooLong)))
        .seen(&[SEND_LEFT, FLUSHED, STILL_AT_IT])
}

/// libsiw puts a different field of the request on the wire than its program set: it is always tag 0.
fn invalidate_by_siw() -> Session {
    let ours = |end: &mut End| {
        let text = end.wait_for_end();
        let error = end.qp.error().unwrap();
        let QpError::Remote(denied) = &error else { panic!("{text}") };
        assert_eq!(denied.tag, Tag(0), "{text}");
        end.written(0);
    };
    Session::new("siw invalidates", "connect advert bad-invalidate=8 see untouched", ours)
        .ending(Ending::Ours(Cause::Protection(Protection::Invalidate)))
        .seen(&[SEND_LEFT, FLUSHED, STILL_AT_IT])
}

/// By default, Ironwarp holds a message until a receive is posted.
fn waits() -> Session {
    let ours = |end: &mut End| {
        end.post_receive(1);
        end.receive(8);
        end.send(8);
    };
    let siw = "connect advert send=8 receive=8";
    Session::new("siw sends before the receive is posted", siw, ours).shape(|shape| shape.few = true)
}

/// With strict receives, it does not.
fn strict() -> Session {
    let ours = |end: &mut End| {
        assert_eq!(end.wait_for_end(), "protocol violation by the peer: no receive is posted for a message");
    };
    Session::new("siw sends, and no receive is posted", "connect advert bad-send=8 see", ours)
        .settings(Settings::StrictReceive)
        .shape(|shape| shape.few = true)
        .ending(Ending::Ours(Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer)))
        .seen(&[SEND_LEFT, FLUSHED, STILL_AT_IT])
}

// --- Violations by Ironwarp ---

impl Why {
    /// Memory of siw that is not permitted.
    fn addr(self, end: &End, without_right: What) -> RemoteAddr {
        let main = end.their(What::Main);
        let RemoteAddr { tag, offset } = main.addr;
        match self {
            Self::Bounds => RemoteAddr { tag, offset: offset + u64::from(main.len - SHORT / 2) },
            Self::Wrap => RemoteAddr { tag, offset: u64::MAX - u64::from(SHORT / 2) },
            Self::Tag => RemoteAddr { tag: Tag(tag.0 ^ 0x4000_0000), offset },
            Self::Key => RemoteAddr { tag: Tag(tag.0 ^ 0xff), offset },
            Self::Rights => end.their(without_right).addr,
            Self::Domain => end.their(What::Domain).addr,
            Self::Gone => end.their(What::Gone).addr,
        }
    }
}

/// Returns siw's Terminate: its cause, and the header of the segment.
fn terminated(error: &QpError) -> Terminate {
    let QpError::Terminated(terminate) = error else { panic!("{error}") };
    *terminate
}

/// Returns the Terminate for a request that siw refused. If requests complete when they are sent, a Write or Send has
/// already completed, and the queue pair has the error. Otherwise the completion has it.
fn refused(
    end: &End,
    result: Result<Completion, RequestError>,
    completes: Completes,
    status: Status,
) -> Terminate {
    match (completes, result) {
        (Completes::WhenSent, result) => drop(result.expect("it was sent")),
        (Completes::WhenAcknowledged, result) => {
            let RequestError(completion) = result.expect_err("siw refuses it");
            assert_eq!(completion.status, status, "{completion:?}");
            terminated(completion.cause.as_ref().expect("the error is known"));
        }
    }
    end.wait_for_end();
    terminated(&end.qp.error().unwrap())
}

/// siw's Terminate for a Write, where it differs from the RFC.
const fn siw_of_write(why: Why) -> Cause {
    match why {
        Why::Rights => Cause::TaggedBuffer(TaggedBuffer::Tag),
        // The sum also wraps in siw (`siw_check_mem`), which then fails to find the page.
        Why::Wrap => Cause::DdpCatastrophic,
        _ => why.of_write(),
    }
}

fn write_by_us(why: Why, completes: Completes) -> Session {
    let ours = move |end: &mut End| {
        let addr = why.addr(end, What::ReadOnly);
        let source = end.source.slice(..SHORT as usize).unwrap();
        let result = end.posted(WorkRequest::write(1, &[source], addr));
        let status = if why == Why::Wrap { Status::RemoteOperation } else { Status::RemoteAccess };
        let terminate = refused(end, result, completes, status);
        assert_eq!(terminate.cause, siw_of_write(why));
        let Some(DdpHeader::Tagged(header)) = terminate.offender.header else { panic!("{terminate:?}") };
        assert_eq!(header.addr, addr);
    };
    let event = match why {
        Why::Tag | Why::Key | Why::Wrap | Why::Gone => None,
        _ => Some("event: local access violation work queue error"),
    };
    let seen: Vec<&str> = [FLUSHED].into_iter().chain(event).collect();
    Session::new(&format!("Ironwarp writes: {why:?}"), "connect advert idle see untouched", ours)
        .ending(Ending::Siws(siw_of_write(why)))
        .seen(&seen)
}

/// siw does not check access rights of Reads.
fn read_by_us(why: Why) -> Session {
    let name = format!("Ironwarp reads: {why:?}");
    if why == Why::Rights {
        let ours = |end: &mut End| {
            let sink = end.sink.slice(..SHORT as usize).unwrap();
            let from = end.their(What::WriteOnly).addr;
            end.completes(WorkRequest::read(3, &[sink], from), Opcode::Read, SHORT as usize);
            end.send(8);
        };
        return Session::new(&name, "connect advert receive=8 untouched", ours);
    }
    if why == Why::Wrap {
        // siw finds no page to send, and closes without a Terminate.
        let ours = move |end: &mut End| {
            let sink = end.sink.slice(..SHORT as usize).unwrap();
            let from = why.addr(end, What::WriteOnly);
            let RequestError(completion) = end.posted(WorkRequest::read(3, &[sink], from)).unwrap_err();
            assert_eq!(completion.cause.as_deref(), Some(&QpError::Closed));
            end.expect_closed();
        };
        return Session::new(&name, "connect advert see untouched", ours)
            .ending(Ending::Broken)
            .seen(&[FLUSHED, "event: invalid request local work queue error|"]);
    }
    let ours = move |end: &mut End| {
        let addr = why.addr(end, What::WriteOnly);
        let sink = end.sink.slice(..SHORT as usize).unwrap();
        let RequestError(completion) = end.posted(WorkRequest::read(3, &[sink], addr)).unwrap_err();
        assert_eq!(
            (completion.status, completion.opcode),
            (Status::RemoteAccess, Opcode::Read),
            "{completion:?}"
        );
        let terminate = terminated(completion.cause.as_ref().unwrap());
        assert_eq!(terminate.cause, why.of_read());
        let read = terminate.offender.read.expect("siw returns the Read Request");
        assert_eq!((read.source, read.len), (addr, SHORT));
        end.wait_for_end();
    };
    Session::new(&name, "connect advert idle see untouched", ours)
        .ending(Ending::Siws(why.of_read()))
        .seen(&[FLUSHED, "event: invalid request local work queue error|"])
}

/// A message of this length, for which siw has no receive, or claims so.
fn finds_no_buffer(end: &mut End, len: usize, completes: Completes) {
    let message = end.fill_message(len);
    let result = end.posted(WorkRequest::send(2, &[message]));
    let terminate = refused(end, result, completes, Status::RemoteInvalidRequest);
    assert_eq!(terminate.cause, Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer));
}

/// siw treats a receive that is too short like a missing one.
fn too_long_by_us(completes: Completes) -> Session {
    let ours = move |end: &mut End| finds_no_buffer(end, 260, completes);
    Session::new("Ironwarp sends more than a receive holds", "connect advert idle see", ours)
        .ending(Ending::Siws(Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer)))
        .seen(&["receive: local length error", FLUSHED, "event: local work queue catastrophic error"])
}

fn no_receive(completes: Completes) -> Session {
    let ours = move |end: &mut End| finds_no_buffer(end, 8, completes);
    Session::new("Ironwarp sends, and no receive is posted", "receives=1@256 connect advert idle see", ours)
        .ending(Ending::Siws(Cause::UntaggedBuffer(UntaggedBuffer::NoBuffer)))
}

/// siw lets its peers invalidate any region, which is unknown afterwards.
fn after_invalidation(completes: Completes) -> Session {
    let ours = move |end: &mut End| {
        let spare = end.their(What::Spare).addr;
        let source = end.source.slice(..SHORT as usize).unwrap();
        let result = end.posted(WorkRequest::write(1, &[source], spare));
        let terminate = refused(end, result, completes, Status::RemoteAccess);
        assert_eq!(terminate.cause, Cause::TaggedBuffer(TaggedBuffer::Tag));
    };
    let invalidates = |end: &mut End| {
        let tag = end.their(What::Spare).addr.tag;
        end.send_as(8, |request| request.invalidate(tag));
    };
    Session::new("Ironwarp invalidates, and writes", "connect advert receive=8 idle see untouched", ours)
        .first(invalidates)
        .ending(Ending::Siws(Cause::TaggedBuffer(TaggedBuffer::Tag)))
        .seen(&[FLUSHED, "event: local access violation work queue error"])
}

/// siw notifies its program, and the stream continues. Its Terminate waits until siw disconnects, and then reports the
/// last message; if Ironwarp disconnects first, it is never sent. Nor is it sent while siw responds to Ironwarp's Read
/// for acknowledgements, so none is sent here.
fn bad_invalidate_by_us(connects: bool) -> Session {
    let cause = Cause::Operation(Operation::Invalidate);
    let ours = move |end: &mut End| {
        let tag = end.their(What::Main).addr.tag.0 ^ 0x4000_0000;
        end.send_as(8, |request| request.invalidate(Tag(tag)));
        end.receive(8);
        end.write(64, 0);
        end.send(8);
        if !connects {
            end.wait_for_end();
            assert_eq!(terminated(&end.qp.error().unwrap()).cause, cause);
        }
    };
    let name = "Ironwarp invalidates what is not there";
    let siw = "connect advert receive-status send=8 receive-status";
    let session = if connects {
        Session::new(name, siw, ours)
    } else {
        Session::new(name, format!("{siw} disconnect"), ours).ending(Ending::Siws(cause))
    };
    session.seen(&["receive: remote invalid request error", "receive: success"])
}
