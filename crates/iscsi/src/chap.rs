//! Authentication with CHAP and MD5 (RFC 1994, RFC 7143 §9.2.1 and §12.1.3).

use crate::random::random;
use crate::text::{Text, to_hex};
use md5::{Digest, Md5};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// The number of CHAP with MD5, the only algorithm that is offered.
pub(crate) const MD5: &str = "5";
/// Maximum length of a challenge or response.
pub(crate) const MAX_BINARY: usize = 1024;
/// Shortest secret, in bytes: 96 bits (RFC 7143 §9.2.1).
const MIN_SECRET: usize = 12;
/// Maximum length of a name or secret, in bytes.
const MAX_LEN: usize = 255;

/// Names and secrets for CHAP. Secrets do not appear in the `Debug` output.
///
/// ```
/// use ironwarp_iscsi::Credentials;
///
/// // The target authenticates itself as well.
/// let credentials = Credentials::new("host", b"initiator secret")?.mutual("storage", b"target's secret")?;
/// assert!(!format!("{credentials:?}").contains("secret"));
/// # Ok::<(), ironwarp_iscsi::InvalidCredentials>(())
/// ```
#[derive(Clone, Debug)]
pub struct Credentials {
    ours: Account,
    target: Option<Account>,
}

/// The name of one end, and the secret with which it authenticates itself.
#[derive(Clone)]
struct Account {
    name: String,
    key: Vec<u8>,
}

/// Credentials that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCredentials {
    /// A name is empty, too long or has control characters.
    #[error("invalid CHAP name {0:?}: use 1 to {MAX_LEN} bytes without control characters")]
    Name(String),
    /// A secret is too short or too long.
    #[error("CHAP secret of {0} bytes: use {MIN_SECRET} to {MAX_LEN} random bytes")]
    SecretLen(usize),
    /// Both ends have the same secret.
    #[error("the CHAP secrets of initiator and target are equal: use different ones")]
    EqualSecrets,
}

/// A target that cannot be authenticated, or that the initiator must not authenticate itself to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChapError {
    /// The target sent a challenge of this initiator, from this login or another one.
    #[error(
        "the target sent this initiator's own CHAP challenge: it is not the target that it pretends to be"
    )]
    Reflected,
    /// The target's response is the one that this initiator would have given.
    #[error(
        "the target answered with the initiator's CHAP secret: configure different secrets for the two ends"
    )]
    OwnSecret,
    /// The target has another name.
    #[error(
        "the target has the CHAP name {found:?}, expected {expected:?}: check the name of its outgoing account"
    )]
    Name {
        /// The name that the target sent.
        found: String,
        /// The name in the credentials.
        expected: String,
    },
    /// The target does not know its secret.
    #[error("the target failed to authenticate itself: check the secret of its outgoing account")]
    WrongSecret,
}

/// A challenge of this initiator that a target has yet to answer.
#[derive(Debug)]
pub(crate) struct Challenge {
    id: u8,
    bytes: [u8; 16],
}

/// The challenges of all logins in progress. A target must not get the answer to one of them from another login
/// (RFC 7143 §9.2.1).
static OUTSTANDING: Mutex<Vec<[u8; 16]>> = Mutex::new(Vec::new());

fn outstanding() -> MutexGuard<'static, Vec<[u8; 16]>> {
    OUTSTANDING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Credentials {
    /// Creates credentials that authenticate the initiator only.
    pub fn new(name: impl Into<String>, secret: &[u8]) -> Result<Self, InvalidCredentials> {
        Ok(Self { ours: Account::new(name.into(), secret)?, target: None })
    }

    /// Requires that the target authenticates itself as well, with another secret.
    pub fn mutual(mut self, name: impl Into<String>, secret: &[u8]) -> Result<Self, InvalidCredentials> {
        let target = Account::new(name.into(), secret)?;
        if target.key == self.ours.key {
            return Err(InvalidCredentials::EqualSecrets);
        }
        self.target = Some(target);
        Ok(self)
    }

    /// Creates the challenge for the target, if the target is to authenticate itself.
    pub(crate) fn challenge(&self) -> io::Result<Option<Challenge>> {
        self.target.as_ref().map(|_| Challenge::random()).transpose()
    }

    /// Returns the keys that answer a challenge of the target, with those of this end's own challenge.
    pub(crate) fn answer(
        &self,
        id: u8,
        challenge: &[u8],
        ours: Option<&Challenge>,
    ) -> Result<Text, ChapError> {
        if outstanding().iter().any(|ours| ours[..] == *challenge) {
            return Err(ChapError::Reflected);
        }
        let mut text = Text::default();
        text.push("CHAP_N", &self.ours.name);
        text.push("CHAP_R", &to_hex(&self.ours.response(id, challenge)));
        if let Some(Challenge { id, bytes }) = ours {
            text.push("CHAP_I", &id.to_string());
            text.push("CHAP_C", &to_hex(bytes));
        }
        Ok(text)
    }

    /// Checks the answer of the target to a challenge of this end.
    pub(crate) fn verify(&self, name: &str, response: &[u8], ours: &Challenge) -> Result<(), ChapError> {
        let Some(target) = &self.target else { return Ok(()) };
        if response == self.ours.response(ours.id, &ours.bytes) {
            Err(ChapError::OwnSecret)
        } else if name != target.name {
            Err(ChapError::Name { found: name.to_owned(), expected: target.name.clone() })
        } else if response != target.response(ours.id, &ours.bytes) {
            // How long this takes tells nothing: each challenge has a response of its own.
            Err(ChapError::WrongSecret)
        } else {
            Ok(())
        }
    }
}

impl Account {
    fn new(name: String, secret: &[u8]) -> Result<Self, InvalidCredentials> {
        if name.is_empty() || name.len() > MAX_LEN || name.contains(char::is_control) {
            return Err(InvalidCredentials::Name(name));
        }
        if !(MIN_SECRET..=MAX_LEN).contains(&secret.len()) {
            return Err(InvalidCredentials::SecretLen(secret.len()));
        }
        Ok(Self { name, key: secret.to_vec() })
    }

    /// Computes the response to a challenge.
    fn response(&self, id: u8, challenge: &[u8]) -> [u8; 16] {
        Md5::new().chain_update([id]).chain_update(&self.key).chain_update(challenge).finalize().into()
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Challenge {
    fn random() -> io::Result<Self> {
        let [id] = random()?;
        Ok(Self::new(id, random()?))
    }

    fn new(id: u8, bytes: [u8; 16]) -> Self {
        outstanding().push(bytes);
        Self { id, bytes }
    }
}

impl Drop for Challenge {
    fn drop(&mut self) {
        let mut all = outstanding();
        if let Some(index) = all.iter().position(|bytes| *bytes == self.bytes) {
            all.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{binary, parse};

    const OURS: &[u8] = b"initiator-secret";
    const TARGET: &[u8] = b"secret-of-target";

    fn mutual() -> Credentials {
        Credentials::new("host", OURS).unwrap().mutual("storage", TARGET).unwrap()
    }

    fn account(secret: &[u8]) -> Account {
        Account { name: "host".into(), key: secret.to_vec() }
    }

    #[test]
    fn responses_are_those_of_rfc_1994() {
        // MD5("message digest") and MD5("abcdefghijklmnopqrstuvwxyz") of RFC 1321 §A.5, split into the three parts.
        let expected = binary("0xf96b697d7cb7938d525a2f31aaf161d0", 16).unwrap();
        assert_eq!(account(b"essage d").response(b'm', b"igest")[..], expected);
        let expected = binary("0xc3fcd3d76192e4007dfb496cca67e13b", 16).unwrap();
        assert_eq!(account(b"bcdefghijkl").response(b'a', b"mnopqrstuvwxyz")[..], expected);
    }

    #[test]
    fn an_answer_has_the_keys_of_both_directions() {
        let challenge = Challenge::new(7, [3; 16]);
        let text = mutual().answer(9, b"from the target", Some(&challenge)).unwrap();
        let response = to_hex(&account(OURS).response(9, b"from the target"));
        let ours = to_hex(&[3; 16]);
        let pairs = [("CHAP_N", "host"), ("CHAP_R", &response), ("CHAP_I", "7"), ("CHAP_C", &ours)];
        assert_eq!(parse(text.as_bytes()).unwrap(), pairs);
        let text = mutual().answer(9, b"from the target", None).unwrap();
        assert_eq!(parse(text.as_bytes()).unwrap(), pairs[..2]);
    }

    #[test]
    fn a_target_that_cannot_authenticate_itself_is_refused() {
        let challenge = Challenge::new(7, [3; 16]);
        let verify = |name: &str, secret: &[u8]| {
            mutual().verify(name, &account(secret).response(7, &[3; 16]), &challenge)
        };
        assert_eq!(verify("storage", TARGET), Ok(()));
        assert_eq!(verify("storage", b"another secret"), Err(ChapError::WrongSecret));
        assert_eq!(verify("storage", OURS), Err(ChapError::OwnSecret));
        let name = ChapError::Name { found: "other".into(), expected: "storage".into() };
        assert_eq!(verify("other", TARGET), Err(name));
        assert_eq!(mutual().verify("storage", &[], &challenge), Err(ChapError::WrongSecret));
    }

    #[test]
    fn a_challenge_of_this_initiator_is_never_answered() {
        let challenge = Challenge::new(7, [9; 16]);
        let one_way = Credentials::new("host", OURS).unwrap();
        assert_eq!(mutual().answer(7, &[9; 16], Some(&challenge)).unwrap_err(), ChapError::Reflected);
        assert_eq!(one_way.answer(7, &[9; 16], None).unwrap_err(), ChapError::Reflected);
        drop(challenge);
        assert!(one_way.answer(7, &[9; 16], None).is_ok());
    }

    #[test]
    fn challenges_are_random() {
        let [a, b] = [Challenge::random().unwrap(), Challenge::random().unwrap()];
        assert_ne!(a.bytes, b.bytes);
    }

    #[test]
    fn unusable_credentials_are_refused() {
        let error = |name: &str, secret: &[u8]| Credentials::new(name, secret).unwrap_err();
        assert_eq!(error("host", b"eleven byte"), InvalidCredentials::SecretLen(11));
        assert_eq!(error("host", &[1; 256]), InvalidCredentials::SecretLen(256));
        assert_eq!(error("", OURS), InvalidCredentials::Name(String::new()));
        assert_eq!(error("a\0b", OURS), InvalidCredentials::Name("a\0b".into()));
        let equal = Credentials::new("host", OURS).unwrap().mutual("storage", OURS);
        assert_eq!(equal.unwrap_err(), InvalidCredentials::EqualSecrets);
    }

    #[test]
    fn secrets_do_not_appear_in_debug_output() {
        let shown = format!("{:?}", mutual());
        assert!(shown.contains("host") && shown.contains("storage"), "{shown}");
        let bytes = format!("{OURS:?}");
        assert!(
            !shown.contains("initiator-secret") && !shown.contains(bytes.trim_matches(['[', ']'])),
            "{shown}"
        );
    }
}
