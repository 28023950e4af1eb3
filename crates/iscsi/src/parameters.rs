//! What a login asks for, and the parameters of the session that it results in.

use crate::chap::Credentials;
use crate::error::LoginError;
use ironwarp_wire::iscsi::Digests;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The range of lengths of bursts and data segments (RFC 7143 §13.12 to §13.14).
pub(crate) const LENGTHS: RangeInclusive<u32> = 512..=0xff_ffff;
/// Maximum length of a name, in bytes (RFC 7143 §4.2.7.1).
const MAX_NAME: usize = 223;
/// Default of the lengths.
const DEFAULT_LEN: u32 = 256 * 1024;

/// Whether PDUs carry a CRC32c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// No digest.
    None,
    /// A digest, unless the target does not support it.
    #[default]
    Prefer,
    /// A digest, or the login fails.
    Require,
}

/// Options of [`login`](crate::login()).
///
/// ```
/// use ironwarp_iscsi::{DigestPolicy, Options};
/// use std::time::Duration;
///
/// let options = Options::new("iqn.2026-01.example.host:backup", "iqn.2026-01.example.storage:disk1")
///     .header_digest(DigestPolicy::None)
///     .max_burst(1 << 20)
///     .timeout(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) initiator_name: String,
    pub(crate) target_name: String,
    pub(crate) isid: Option<[u8; 6]>,
    pub(crate) chap: Option<Credentials>,
    pub(crate) header_digest: DigestPolicy,
    pub(crate) data_digest: DigestPolicy,
    pub(crate) max_recv_data_segment: u32,
    pub(crate) max_burst: u32,
    pub(crate) first_burst: u32,
    pub(crate) initial_r2t: bool,
    pub(crate) immediate_data: bool,
    pub(crate) timeout: Duration,
    pub(crate) reconnect: Duration,
}

/// The parameters of a session, as the two ends have negotiated them. There is one connection, at error recovery level 0,
/// with at most one outstanding R2T for each command, and data is sent in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Negotiated {
    /// Which digests PDUs carry from now on.
    pub digests: Digests,
    /// Maximum length of the data of a PDU that this end receives.
    pub max_recv_data_segment: u32,
    /// Maximum length of the data of a PDU that the target receives.
    pub target_max_recv_data_segment: u32,
    /// Maximum number of bytes for which a target asks with an R2T, and of a sequence of Data-In PDUs.
    pub max_burst: u32,
    /// Maximum number of unsolicited bytes of a command, including immediate data.
    pub first_burst: u32,
    /// Whether unsolicited Data-Out PDUs are forbidden.
    pub initial_r2t: bool,
    /// Whether commands may carry data.
    pub immediate_data: bool,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The target's part of the session identifier.
    pub tsih: u16,
    /// CmdSN of the first command.
    pub cmd_sn: u32,
    /// StatSN of the next status.
    pub exp_stat_sn: u32,
    /// Maximum CmdSN that the target accepts for now.
    pub max_cmd_sn: u32,
}

impl Options {
    /// Creates options for a login at a target. The names are iSCSI names, such as `iqn.2026-01.example.storage:disk1`.
    pub fn new(initiator_name: impl Into<String>, target_name: impl Into<String>) -> Self {
        Self {
            initiator_name: initiator_name.into(),
            target_name: target_name.into(),
            isid: None,
            chap: None,
            header_digest: DigestPolicy::default(),
            data_digest: DigestPolicy::default(),
            max_recv_data_segment: DEFAULT_LEN,
            max_burst: DEFAULT_LEN,
            first_burst: DEFAULT_LEN,
            initial_r2t: false,
            immediate_data: true,
            timeout: Duration::from_secs(15),
            reconnect: Duration::ZERO,
        }
    }

    /// Sets the initiator's part of the session identifier. A session of the same names and identifier ends when this one
    /// begins. Defaults to a random one.
    #[must_use]
    pub fn isid(mut self, isid: [u8; 6]) -> Self {
        self.isid = Some(isid);
        self
    }

    /// Authenticates with CHAP. The login fails if the target does not. Defaults to no authentication.
    #[must_use]
    pub fn chap(mut self, credentials: Credentials) -> Self {
        self.chap = Some(credentials);
        self
    }

    /// Sets whether headers carry a digest. Defaults to [`DigestPolicy::Prefer`].
    #[must_use]
    pub fn header_digest(mut self, policy: DigestPolicy) -> Self {
        self.header_digest = policy;
        self
    }

    /// Sets whether data carries a digest. Defaults to [`DigestPolicy::Prefer`].
    #[must_use]
    pub fn data_digest(mut self, policy: DigestPolicy) -> Self {
        self.data_digest = policy;
        self
    }

    /// Sets the maximum length of the data of a PDU that the target sends. Defaults to 262,144.
    #[must_use]
    pub fn max_recv_data_segment(mut self, len: u32) -> Self {
        self.max_recv_data_segment = len;
        self
    }

    /// Sets the maximum length of a burst of data; the target can reduce it. Defaults to 262,144.
    #[must_use]
    pub fn max_burst(mut self, len: u32) -> Self {
        self.max_burst = len;
        self
    }

    /// Sets the maximum number of unsolicited bytes of a command; the target can reduce it. Defaults to 262,144.
    #[must_use]
    pub fn first_burst(mut self, len: u32) -> Self {
        self.first_burst = len;
        self
    }

    /// Sets whether the target must ask for all data that a command does not carry itself. Defaults to false; the target
    /// can require it.
    #[must_use]
    pub fn initial_r2t(mut self, required: bool) -> Self {
        self.initial_r2t = required;
        self
    }

    /// Sets whether commands may carry data. Defaults to true; the target can forbid it.
    #[must_use]
    pub fn immediate_data(mut self, allowed: bool) -> Self {
        self.immediate_data = allowed;
        self
    }

    /// Sets how long the whole login may take. Defaults to 15 seconds.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets for how long a [`Session`](crate::Session) tries to log in again after it has lost its connection. It then issues
    /// all commands again that have not ended. Defaults to zero: they fail.
    #[must_use]
    pub fn reconnect(mut self, time: Duration) -> Self {
        self.reconnect = time;
        self
    }

    /// Checks the options.
    pub(crate) fn check(&self) -> Result<(), LoginError> {
        let fail = |option, reason| Err(LoginError::Option { option, reason });
        for (option, name) in [("initiator_name", &self.initiator_name), ("target_name", &self.target_name)] {
            let known = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
            if !known || name.contains(|c: char| c.is_control() || c.is_whitespace()) {
                return fail(option, "use an iSCSI name, such as iqn.2026-01.example.storage:disk1");
            }
            if name.len() > MAX_NAME {
                return fail(option, "iSCSI names have at most 223 bytes");
            }
        }
        for (option, len) in [
            ("max_recv_data_segment", self.max_recv_data_segment),
            ("max_burst", self.max_burst),
            ("first_burst", self.first_burst),
        ] {
            if !LENGTHS.contains(&len) {
                return fail(option, "use 512 to 16,777,215 bytes");
            }
        }
        if self.first_burst > self.max_burst {
            return fail("first_burst", "must not exceed max_burst");
        }
        if self.timeout.is_zero() {
            return fail("timeout", "must not be zero");
        }
        Ok(())
    }
}
