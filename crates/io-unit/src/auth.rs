//! Authentication: keys of hosts, proofs, and which session of a name is current.
//!
//! Each host has a key of its own, bound to its name and its MAC addresses, so that a host that is taken over can pose as
//! itself only. `docs/io-unit.md` says what each proof covers. Nothing but attaching is authenticated, and nothing is
//! encrypted.

use crate::message::{Admitted, Attach, HostName, Join, Mac, Nonce, Proof, Status, VERSION};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Shortest key, in bytes.
pub const MIN_KEY: usize = 16;

/// The key that a unit shares with one host.
#[derive(Clone)]
pub struct Key(Vec<u8>);

/// What a proof is for. Proofs of different kinds differ, so that none can be sent back as another.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// The host attaches.
    Attach,
    /// The unit admits it, with the fields of this reply.
    Admit(&'a Admitted),
    /// The host ties a data channel to its session, with the fields of this request.
    Join(&'a Join),
}

/// A key or a table of keys that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The key is too short.
    #[error("key of {len} bytes is too short: use at least {MIN_KEY}")]
    Short {
        /// Length of the key.
        len: usize,
    },
    /// The table has the name already.
    #[error("host {name} has a key already")]
    DuplicateName {
        /// Name of the host.
        name: HostName,
    },
    /// Another host has the address already.
    #[error("MAC address {mac} is already bound to host {owner}")]
    DuplicateMac {
        /// The address.
        mac: Mac,
        /// Name of the other host.
        owner: HostName,
    },
    /// A host cannot have the address.
    #[error("invalid MAC address {mac} of a host: it is zero or a group address")]
    InvalidMac {
        /// The address.
        mac: Mac,
    },
}

/// Result of an Attach that a unit has admitted.
#[derive(Clone, Debug)]
pub struct Admission {
    /// Number of the session.
    pub session: u64,
    /// Generation of the session.
    pub generation: u64,
    /// The session of the same name that this one replaces. End it.
    pub replaced: Option<u64>,
    /// MAC addresses that the key of this host allows.
    pub allowed: BTreeSet<Mac>,
    /// Key of the host.
    pub key: Key,
}

/// The hosts that a unit knows, and their current sessions.
#[derive(Debug, Default)]
pub struct Registry {
    hosts: BTreeMap<HostName, Host>,
    last_generation: u64,
}

#[derive(Debug)]
struct Host {
    key: Key,
    allowed: BTreeSet<Mac>,
    session: Option<u64>,
}

impl Key {
    /// Checks a key.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidKey> {
        if bytes.len() < MIN_KEY {
            return Err(InvalidKey::Short { len: bytes.len() });
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Computes a proof for the exchange of `attach` with a unit that chose the nonce `unit`. The proof in `attach`
    /// is not part of it.
    pub fn proof(&self, purpose: Purpose<'_>, unit: Nonce, attach: &Attach) -> Proof {
        Proof(self.mac(purpose, unit, attach).finalize().into_bytes().into())
    }

    /// Returns whether a proof is valid. The time it takes does not depend on which bytes are wrong.
    pub fn verify(&self, proof: &Proof, purpose: Purpose<'_>, unit: Nonce, attach: &Attach) -> bool {
        self.mac(purpose, unit, attach).verify_slice(&proof.0).is_ok()
    }

    fn mac(&self, purpose: Purpose<'_>, unit: Nonce, attach: &Attach) -> Hmac<Sha256> {
        let mut signed = Vec::new();
        signed.extend(match purpose {
            Purpose::Attach => &b"ironwarp-iou attach"[..],
            Purpose::Admit(_) => b"ironwarp-iou admit",
            Purpose::Join(_) => b"ironwarp-iou join",
        });
        signed.extend(VERSION.to_be_bytes());
        signed.extend(unit.0);
        attach.encode_signed(&mut signed);
        match purpose {
            Purpose::Attach => {}
            Purpose::Admit(admitted) => admitted.encode_signed(&mut signed),
            Purpose::Join(join) => {
                signed.extend(join.session.to_be_bytes());
                signed.extend(join.generation.to_be_bytes());
            }
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(&signed);
        mac
    }
}

/// Hides the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Registry {
    /// Creates a registry without hosts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a key to a name and MAC addresses. No two names can share an address: otherwise one host could take the
    /// frames of another.
    pub fn add(
        &mut self,
        name: HostName,
        key: Key,
        allowed: impl IntoIterator<Item = Mac>,
    ) -> Result<(), InvalidKey> {
        let allowed: BTreeSet<Mac> = allowed.into_iter().collect();
        if self.hosts.contains_key(&name) {
            return Err(InvalidKey::DuplicateName { name });
        }
        for mac in &allowed {
            if !mac.is_valid() {
                return Err(InvalidKey::InvalidMac { mac: *mac });
            }
            if let Some((owner, _)) = self.hosts.iter().find(|(_, host)| host.allowed.contains(mac)) {
                return Err(InvalidKey::DuplicateMac { mac: *mac, owner: owner.clone() });
            }
        }
        self.hosts.insert(name, Host { key, allowed, session: None });
        Ok(())
    }

    /// Checks an Attach that answers the nonce `unit`, and makes it the current session of its name.
    pub fn attach(&mut self, attach: &Attach, unit: Nonce) -> Result<Admission, Status> {
        // An unknown name costs one HMAC as well, so that the time does not tell which names exist.
        let nobody = Key(vec![0; MIN_KEY]);
        let host = self.hosts.get_mut(&attach.name);
        let key = host.as_ref().map_or(&nobody, |host| &host.key);
        let proven = key.verify(&attach.proof, Purpose::Attach, unit, attach);
        let host = host.filter(|_| proven).ok_or(Status::AuthenticationFailed)?;
        if !attach.macs.iter().all(|mac| host.allowed.contains(mac)) {
            return Err(Status::NotAllowed);
        }
        self.last_generation += 1;
        let session = self.last_generation;
        let replaced = host.session.replace(session);
        let (allowed, key) = (host.allowed.clone(), host.key.clone());
        Ok(Admission { session, generation: self.last_generation, replaced, allowed, key })
    }

    /// Forgets a session that has ended. One that was replaced changes nothing.
    pub fn detach(&mut self, name: &HostName, session: u64) {
        if let Some(host) = self.hosts.get_mut(name) {
            host.session = host.session.filter(|current| *current != session);
        }
    }

    /// Returns the current session of a name.
    pub fn current(&self, name: &HostName) -> Option<u64> {
        self.hosts.get(name)?.session
    }
}
