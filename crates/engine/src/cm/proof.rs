//! How two manually connected queue pairs prove to each other that they know the same key: HMAC-SHA256 over both
//! nonces, GIDs and numbers, truncated to 128 bits. `docs/wire.md` describes the exchange.

use crate::config::ClusterKey;
use hmac::{Hmac, Mac};
use ironwarp_rnic::gid::Gid;
use ironwarp_wire::private::{Secret, Token, VERSION};
use sha2::Sha256;

/// A key that two manually connected queue pairs share.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    /// The key in the settings, which all hosts of a cluster share. It is set: without one,
    /// [`Config::cluster_key`](crate::config::Config::cluster_key) returns `None`.
    Cluster(ClusterKey),
    /// The secret that two connection managers exchanged for these two queue pairs.
    Secret(Secret),
}

/// A queue pair of a manual connection. The smaller one of two dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QpAddress {
    pub(super) gid: Gid,
    pub(super) qpn: u32,
}

/// Both ends of a manual connection, as the programs named them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) dialler: QpAddress,
    pub(super) acceptor: QpAddress,
}

/// The random numbers that a proof is valid for, one of each end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nonces {
    pub(super) dialler: Token,
    pub(super) acceptor: Token,
}

/// The end that a proof comes from. The proofs of both ends must differ: otherwise an end could send the proof of the
/// other back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Prover {
    Dialler,
    Acceptor,
}

impl Key {
    /// Returns the bytes of the key, with which the HMAC is computed.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Cluster(key) => key.bytes().expect("a cluster key in use is set"),
            Self::Secret(secret) => &secret.0,
        }
    }

    /// Computes the MAC that a proof is the beginning of.
    fn mac(&self, by: Prover, nonces: &Nonces, ends: &Ends) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.bytes()).expect("HMAC takes keys of any length");
        mac.update(match by {
            Prover::Dialler => b"dial",
            Prover::Acceptor => b"answer",
        });
        mac.update(&[VERSION]);
        mac.update(&nonces.dialler);
        mac.update(&nonces.acceptor);
        for QpAddress { gid, qpn } in [ends.dialler, ends.acceptor] {
            mac.update(&gid.to_bytes());
            mac.update(&qpn.to_be_bytes());
        }
        mac
    }

    /// Computes the proof of one end that it knows the key.
    pub(super) fn proof(&self, by: Prover, nonces: &Nonces, ends: &Ends) -> Token {
        let whole = self.mac(by, nonces, ends).finalize().into_bytes();
        std::array::from_fn(|index| whole[index])
    }

    /// Returns whether a proof is valid. The time it takes does not depend on which bytes are wrong.
    pub(super) fn verify(&self, proof: &Token, by: Prover, nonces: &Nonces, ends: &Ends) -> bool {
        self.mac(by, nonces, ends).verify_truncated_left(proof).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn key(bytes: &[u8]) -> Key {
        Key::Cluster(ClusterKey::new(bytes).unwrap())
    }

    /// Computed with Python's hmac module from the description in docs/wire.md.
    #[test]
    fn proofs_are_what_the_document_says() {
        let ends = Ends {
            dialler: QpAddress { gid: "192.0.2.1".parse().unwrap(), qpn: 0x0f_a001 },
            acceptor: QpAddress { gid: "192.0.2.2".parse().unwrap(), qpn: 0xff_fe07 },
        };
        let nonces = &Nonces { dialler: [0x11; 16], acceptor: [0x22; 16] };
        let hex = |by| key(KEY).proof(by, nonces, &ends).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(Prover::Dialler), "11f3b6fc09912cc8c470360ca616fd69");
        assert_eq!(hex(Prover::Acceptor), "c2c36b716aa3c33b7b07c142ab24df9e");
        let proof = key(KEY).proof(Prover::Dialler, nonces, &ends);
        assert!(key(KEY).verify(&proof, Prover::Dialler, nonces, &ends));
        assert!(!key(KEY).verify(&proof, Prover::Acceptor, nonces, &ends), "sent back");
        assert!(!key(&KEY[1..]).verify(&proof, Prover::Dialler, nonces, &ends), "another key");
        let other = Nonces { acceptor: nonces.dialler, ..*nonces };
        assert!(!key(KEY).verify(&proof, Prover::Dialler, &other, &ends), "another nonce");
        let swapped = Ends { dialler: ends.acceptor, acceptor: ends.dialler };
        assert!(!key(KEY).verify(&proof, Prover::Dialler, nonces, &swapped), "other ends");
    }
}
