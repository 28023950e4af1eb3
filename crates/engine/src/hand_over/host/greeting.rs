//! The first messages of a move: each end says what it can do, and proves that it has the cluster key.

use super::super::error::Failure;
use super::super::message::Role;
use super::super::source::common_version;
use super::super::wait::Wait;
use super::message::{Head, Hello};
use super::pipe::Pipe;
use super::proof::Session;
use crate::config::ClusterKey;
use crate::sys::random::random;
use ironwarp_rnic::memory::KeyMask;
use std::ops::RangeInclusive;
use std::time::Duration;

/// What one end says.
#[derive(Clone, Debug)]
pub(super) struct Terms<'a> {
    pub(super) role: Role,
    /// The versions of snapshots that it writes or reads.
    pub(super) versions: &'a RangeInclusive<u16>,
    /// Maximum length of the state, and of all buffers, that it takes.
    pub(super) state: u64,
    pub(super) memory: u64,
    pub(super) key: &'a ClusterKey,
    /// How long each message is waited for.
    pub(super) timeout: Duration,
}

/// Exchanges HELLOs and proofs. Calls `hello_sent` after the first message. Returns the version of the snapshot, and what hides
/// the key of the tag cipher in it.
pub(super) fn greet(
    pipe: &mut Pipe,
    terms: &Terms<'_>,
    hello_sent: impl FnOnce(),
) -> Result<(u16, KeyMask), Failure> {
    let own = terms.role;
    let nonce = random().map_err(Failure::system("generate a random number"))?;
    let snapshots = terms.versions.clone().into_inner();
    let &Terms { state, memory, .. } = terms;
    let hello = Hello { role: own, snapshots, state, memory, nonce, more: Vec::new() };
    let wait = Wait::new("HELLO", terms.timeout);
    pipe.send(&Head::Hello(hello), &[], wait)?;
    hello_sent();
    let theirs = match pipe.receive(wait)?.0 {
        Head::Hello(hello) if hello.role != own => hello,
        Head::Hello(hello) => return Err(Failure::SameRole(hello.role)),
        other => return Err(other.unexpected("HELLO")),
    };
    let session = match own {
        Role::Source => Session { key: terms.key, source: nonce, target: theirs.nonce },
        Role::Target => Session { key: terms.key, source: theirs.nonce, target: nonce },
    };
    let wait = wait.awaiting("PROOF");
    pipe.send(&Head::Proof(session.proof(own)), &[], wait)?;
    match pipe.receive(wait)?.0 {
        Head::Proof(proof) if session.verify(theirs.role, &proof) => {}
        Head::Proof(_) => return Err(Failure::OtherKey),
        other => return Err(other.unexpected("PROOF")),
    }
    let version = common_version(terms.versions, &(theirs.snapshots.0..=theirs.snapshots.1))?;
    Ok((version, session.mask()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::pipe;
    use std::thread;

    type Greeted = Result<(u16, KeyMask), Failure>;

    /// Returns what two ends find with these roles, versions of snapshots, and keys.
    fn greeted(ends: [(Role, RangeInclusive<u16>, u8); 2]) -> [Greeted; 2] {
        let ((one_in, two_out), (two_in, one_out)) = (pipe().unwrap(), pipe().unwrap());
        let pipes = [(one_in, one_out), (two_in, two_out)];
        let [one, two] = [0, 1].map(|end: usize| {
            let (role, versions, key) = ends[end].clone();
            let (input, output) = &pipes[end];
            let (input, output) = (input.try_clone().unwrap(), output.try_clone().unwrap());
            thread::spawn(move || {
                let mut pipe = Pipe::new(input.into(), output.into()).unwrap();
                let (key, timeout) = (&ClusterKey::new(&[key; 16]).unwrap(), Duration::from_secs(10));
                let terms = Terms { role, versions: &versions, state: 0, memory: 0, key, timeout };
                greet(&mut pipe, &terms, || {})
            })
        });
        [one.join().unwrap(), two.join().unwrap()]
    }

    #[test]
    fn ends_with_the_same_key_agree() {
        let [one, two] = greeted([(Role::Source, 1..=3, 7), (Role::Target, 2..=5, 7)]).map(Result::unwrap);
        assert_eq!((one.0, two.0, one.1.0), (3, 3, two.1.0));
        let [again, _] = greeted([(Role::Source, 1..=3, 7), (Role::Target, 2..=5, 7)]).map(Result::unwrap);
        assert_ne!(again.1.0, one.1.0, "each move has a mask of its own");
    }

    #[test]
    fn ends_that_do_not_fit_refuse_each_other() {
        let failures =
            |ends| greeted(ends).map(|result| result.map(|(version, _)| version).unwrap_err().to_string());
        for failure in failures([(Role::Source, 1..=1, 7), (Role::Target, 1..=1, 8)]) {
            assert!(failure.contains("different cluster key"), "{failure}");
        }
        for failure in failures([(Role::Source, 1..=1, 7), (Role::Source, 1..=1, 7)]) {
            assert!(failure.contains("both processes are the Source"), "{failure}");
        }
        for failure in failures([(Role::Source, 1..=1, 7), (Role::Target, 2..=3, 7)]) {
            assert!(failure.contains("no common version"), "{failure}");
        }
    }
}
