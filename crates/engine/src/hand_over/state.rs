//! The state in an offer: the snapshot and the bytes of the program, inside of the message or in a sealed memfd.

use super::error::Failure;
use super::message::{MAX_INLINE, Offer};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

/// The seals of the memfd: neither its contents nor its length can change while the target reads it.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// Returns the offer of a state, with the memfd if it needs one.
pub(super) fn pack(
    epoch: u64,
    version: u16,
    snapshot: &[u8],
    program: &[u8],
) -> Result<(Offer, Option<OwnedFd>), Failure> {
    let mut offer =
        Offer { epoch, version, snapshot: snapshot.len() as u64, program: program.len() as u64, state: None };
    if snapshot.len().saturating_add(program.len()) <= MAX_INLINE {
        offer.state = Some([snapshot, program].concat());
        return Ok((offer, None));
    }
    let failed = |error: std::io::Error| Failure::system("write the snapshot to a memfd")(error);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file =
        File::from(memfd_create(c"ironwarp-snapshot", flags).map_err(Failure::system("create a memfd"))?);
    file.write_all(snapshot).and_then(|()| file.write_all(program)).map_err(failed)?;
    fcntl_add_seals(&file, SEALS).map_err(Failure::system("seal the snapshot"))?;
    Ok((offer, Some(file.into())))
}

/// Returns the snapshot and the bytes of the program in an offer. Checks the length before memory is allocated.
pub(super) fn unpack(
    offer: Offer,
    memfd: Option<OwnedFd>,
    limit: u64,
) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let len = offer.snapshot.saturating_add(offer.program);
    let too_long = Failure::StateTooLong { len, limit };
    let (Ok(whole), Ok(snapshot)) = (usize::try_from(len), usize::try_from(offer.snapshot)) else {
        return Err(too_long);
    };
    if len > limit {
        return Err(too_long);
    }
    let mut state = match (offer.state, memfd) {
        (Some(state), _) => state,
        (None, Some(memfd)) => read(memfd, whole)?,
        (None, None) => return Err(Failure::NotSealed { len }),
    };
    let program = state.split_off(snapshot);
    Ok((state, program))
}

/// Reads a sealed memfd of this length.
fn read(memfd: OwnedFd, len: usize) -> Result<Vec<u8>, Failure> {
    let is_sealed = fcntl_get_seals(&memfd).is_ok_and(|seals| seals.contains(SEALS));
    let has_len = fstat(&memfd).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(len as u64));
    if !is_sealed || !has_len {
        return Err(Failure::NotSealed { len: len as u64 });
    }
    let mut state = Vec::new();
    let failed = |error| Failure::System { doing: "allocate memory for the snapshot", error };
    state.try_reserve_exact(len).map_err(|error| failed(std::io::Error::other(error)))?;
    state.resize(len, 0);
    File::from(memfd).read_exact_at(&mut state, 0).map_err(Failure::system("read the snapshot"))?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    fn sealed(len: usize) -> (Offer, Option<OwnedFd>) {
        pack(3, 1, &vec![7; len], b"program").unwrap()
    }

    #[test]
    fn a_state_travels_in_the_message_or_in_a_memfd() {
        for len in [0, 1, MAX_INLINE - 7, MAX_INLINE - 6, 300_000] {
            let (offer, memfd) = sealed(len);
            assert_eq!(memfd.is_some(), len + 7 > MAX_INLINE);
            assert_eq!(offer.epoch, 3);
            assert_eq!(unpack(offer, memfd, LIMIT).unwrap(), (vec![7; len], b"program".to_vec()));
        }
    }

    #[test]
    fn a_state_above_the_limit_is_not_read() {
        for len in [10_usize, 300_000] {
            let (offer, memfd) = sealed(len);
            let failure = unpack(offer, memfd, len as u64 + 6).unwrap_err();
            assert!(matches!(failure, Failure::StateTooLong { .. }), "{failure}");
        }
        let (offer, memfd) = sealed(300_000);
        let huge = Offer { snapshot: u64::MAX, ..offer };
        assert!(matches!(
            unpack(huge, memfd, u64::MAX).unwrap_err(),
            Failure::NotSealed { .. } | Failure::System { .. }
        ));
    }

    #[test]
    fn a_memfd_that_can_change_is_not_read() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        for missing in [SealFlags::WRITE, SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let mut file = File::from(memfd_create(c"test", flags).unwrap());
            file.write_all(&[7; 40_007]).unwrap();
            fcntl_add_seals(&file, SEALS.difference(missing)).unwrap();
            let failure = unpack(sealed(40_000).0, Some(file.into()), LIMIT).unwrap_err();
            assert!(matches!(failure, Failure::NotSealed { len: 40_007 }), "{failure}");
        }
    }

    #[test]
    fn a_memfd_of_another_length_is_not_read() {
        for len in [40_000, 40_002] {
            let failure = unpack(sealed(40_001).0, sealed(len).1, LIMIT).unwrap_err();
            assert!(matches!(failure, Failure::NotSealed { len: 40_008 }), "{failure}");
        }
        let other = File::open("/dev/zero").unwrap();
        assert!(unpack(sealed(40_000).0, Some(other.into()), LIMIT).is_err());
    }
}
