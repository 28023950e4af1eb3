//! Every operation, with every byte verified on both sides.

use crate::end::{End, What};
use crate::session::{Session, Settings, Variant};
use ironwarp::connection::MpaMode;
use ironwarp::queue::{Completes, SendRequest};
use std::fmt::Write;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Lengths of messages: a few bytes, around siw's segment payload of 1440 or 1460 bytes, around that of Ironwarp with
/// `relay::SEGMENT`, and long ones.
const LENGTHS: [usize; 21] = [
    1,
    2,
    3,
    4,
    5,
    63,
    65,
    1413,
    1415,
    1421,
    1433,
    1435,
    1436,
    1437,
    1441,
    2873,
    8159,
    8171,
    16_345,
    64 * KIB,
    MIB,
];
/// Lengths that Ironwarp sends with CRCs. siw 6.1 considers a CRC wrong if a TCP segment ends within it or the padding
/// before it: `siw_get_trailer` starts over with each piece. QEMU segments streams arbitrarily, but not short ones.
const SHORT: [usize; 5] = [1, 3, 64, 400, 500];

/// Number of short [`LENGTHS`]. With CRCs siw sends no longer ones: see `session.rs`.
const NOT_LONG: usize = 19;

/// Returns the sessions that succeed.
pub(crate) fn all(variant: Variant) -> Vec<Session> {
    let mut all = Vec::new();
    for connects in [false, true] {
        for completes in [Completes::WhenSent, Completes::WhenAcknowledged] {
            let mut sessions = Vec::new();
            for settings in [Settings::Usual, Settings::NoCrc] {
                // A siw that requires CRCs gets them, but only if it requests them.
                let crc = settings == Settings::Usual || (variant == Variant::Crc && !connects);
                let (lengths, siws) =
                    if crc { (&SHORT[..], &LENGTHS[..NOT_LONG]) } else { (&LENGTHS[..], &LENGTHS[..]) };
                let mut some = Vec::new();
                // While siw sends, it answers the empty Reads by which Ironwarp gets acknowledgements with bytes of
                // a buffer that `peer` may be filling again: their CRC may be wrong (docs/interop.md).
                if completes == Completes::WhenSent || !crc {
                    some.extend([messages(lengths, siws), tagged(lengths, siws)]);
                }
                // The longest are slow: each once, but in both roles and completion modes with the plain siw.
                let this = (completes == Completes::WhenAcknowledged) == connects;
                if this && !crc {
                    some.push(bulk());
                }
                sessions.extend(some.into_iter().map(|session| session.settings(settings)));
            }
            sessions.extend([solicited(), shared_receive_queue(), private_data(0), private_data(251)]);
            all.extend(sessions.into_iter().map(|session| session.connects(connects).completes(completes)));
        }
        // siw 6.1 may respond to an empty Read Request after inline data with a Terminate: guest/README.md.
        all.push(inline().connects(connects));
    }
    for setup in [MpaMode::ClientServer, MpaMode::Unenhanced] {
        all.push(basic(&format!("{setup:?}")).shape(|shape| shape.setup = setup).connects(true));
    }
    all
}

/// Sends in turn, with one element, with three, and empty. Ironwarp's have these lengths.
fn messages(lengths: &[usize], siws: &[usize]) -> Session {
    let lengths: Vec<usize> = lengths.iter().copied().cycle().take(siws.len()).collect();
    let siws = siws.to_vec();
    let mut siw = "connect advert send=0 receive=0".to_owned();
    for (ours, siws) in lengths.iter().zip(&siws) {
        write!(siw, " send={siws} receive={ours}").unwrap();
    }
    siw += " send-pieces=4099 receive=401";
    let receives = lengths.len() + 4;
    let ours = move |end: &mut End| {
        end.send(0);
        end.receive(0);
        for (&ours, &siws) in lengths.iter().zip(&siws) {
            end.send(ours);
            end.receive(siws);
        }
        end.send_pieces(401);
        end.receive(4099);
    };
    Session::new("messages", siw, ours).half(MIB).receives(receives, MIB)
}

/// Completion queues armed for solicited messages ignore others. Ironwarp's raises an event; siw's never does
/// (`siw_rqe_complete` does not check).
fn solicited() -> Session {
    let siw = "connect advert quiet=8 send=8 quiet=12 send-solicited=9";
    let ours = |end: &mut End| {
        end.send(8);
        end.quiet(8);
        end.send_as(12, SendRequest::solicited);
        end.woken(9);
    };
    Session::new("solicited", siw, ours)
}

/// Writes and Reads, with one element and with three. Only siw's are never empty Reads: guest/README.md.
fn tagged(lengths: &[usize], theirs: &[usize]) -> Session {
    let (lengths, theirs) = (lengths.to_vec(), theirs.to_vec());
    let (ours, siws): (usize, usize) = (lengths.iter().sum(), theirs.iter().sum());
    let mut siw = "connect advert write=0@0".to_owned();
    for (len, at) in places(&theirs) {
        write!(siw, " write={len}@{at}").unwrap();
    }
    write!(siw, " write-pieces=4099@{siws} send=4 receive=4 written={} read=0@0", ours + 100).unwrap();
    for (len, at) in places(&lengths) {
        write!(siw, " read={len}@{at}").unwrap();
    }
    siw += " send=4 receive=4";
    let ours = move |end: &mut End| {
        end.write(0, 0);
        for (len, at) in places(&lengths) {
            end.write(len, at);
        }
        end.write_pieces(100, ours);
        end.send(4);
        end.receive(4);
        end.written(siws + 4099);
        for (len, at) in places(&theirs) {
            end.read(len, at);
        }
        end.read_pieces(4099, siws);
        end.send(4);
        end.receive(4);
    };
    Session::new("Writes and Reads", siw, ours).half(2 * MIB)
}

/// Returns each length with its offset, one after the other.
fn places(lengths: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    lengths.iter().scan(0, |at, &len| {
        let here = *at;
        *at += len;
        Some((len, here))
    })
}

/// The longest messages, in both directions at once.
fn bulk() -> Session {
    let len = 16 * MIB;
    let siw =
        format!("connect advert write={len}@0 send=4 receive=4 written={len} read={len}@0 send=4 receive=4");
    let ours = move |end: &mut End| {
        end.write(len, 0);
        end.send(4);
        end.receive(4);
        end.written(len);
        end.read(len, 0);
        end.send(4);
        end.receive(4);
    };
    Session::new("16 MiB", siw, ours).half(len)
}

/// Receives from a shared receive queue, on both sides.
fn shared_receive_queue() -> Session {
    let siw = "connect advert send=4 receive=4 send=200 receive=200";
    let ours = |end: &mut End| {
        for len in [4, 200] {
            end.receive(len);
            end.send(len);
        }
    };
    Session::new("shared receive queue", siw, ours).shape(|shape| shape.srq = true)
}

/// Private data of both ends. siw sends at most 251 bytes: its length has eight bits, four bytes of which are those of
/// revision 2 (`siw_send_mpareqrep`).
fn private_data(len: usize) -> Session {
    basic(&format!("{len} bytes of private data")).shape(|shape| {
        shape.private = len;
        shape.private_of_siw = len;
    })
}

/// Inline data.
fn inline() -> Session {
    let siw = "connect advert send-inline=1 send-inline=64 write-inline=64@0 send=4 receive=4 receive=64 receive=4 written=64";
    let ours = |end: &mut End| {
        end.send_inline(4);
        end.send_inline(64);
        end.write_inline(64, 0);
        end.send(4);
        end.receive(1);
        end.receive(64);
        end.receive(4);
        end.written(64);
    };
    Session::new("inline", siw, ours)
}

/// A few operations of each kind.
pub(crate) fn basic(name: &str) -> Session {
    let siw = "connect advert write=1000@0 read=1000@0 send=8 receive=8 written=1000";
    Session::new(name, siw, a_little)
}

/// Ironwarp's part of it. Starts when siw has sent everything, so that siw's answers to empty Reads are empty.
pub(crate) fn a_little(end: &mut End) {
    assert_eq!(end.their(What::Main).len as usize, 2 * end.shape.half);
    end.receive(8);
    end.write(1000, 0);
    end.read(1000, 0);
    end.send(8);
    end.written(1000);
}
