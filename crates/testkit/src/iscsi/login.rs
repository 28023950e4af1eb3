//! Negotiation of the parameters of a session (RFC 7143 §6.2, §13).

use super::settings::{NAME, Settings};
use ironwarp_wire::iscsi::Digests;

/// What initiator and target have agreed on.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub(super) digests: Digests,
    /// Maximum data of a PDU of the target.
    pub(super) max_send: usize,
    /// Maximum data of a PDU of the initiator.
    pub(super) max_recv: usize,
    pub(super) initial_r2t: bool,
    pub(super) immediate_data: bool,
    pub(super) max_burst: usize,
    pub(super) first_burst: usize,
    pub(super) max_outstanding_r2t: usize,
}

/// Why a login fails: Status-Class and Status-Detail (RFC 7143 §11.13.5).
pub(super) type Refusal = [u8; 2];

/// The initiator is at fault.
pub(super) const INITIATOR_ERROR: Refusal = [2, 0];
/// The initiator wants to authenticate itself.
const NOT_AUTHENTICATED: Refusal = [2, 1];
/// The target does not exist.
const NOT_FOUND: Refusal = [2, 3];

impl Default for Parameters {
    /// What is valid for keys that were not negotiated.
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            max_send: 8192,
            max_recv: 8192,
            initial_r2t: true,
            immediate_data: true,
            max_burst: 262_144,
            first_burst: 65_536,
            max_outstanding_r2t: 1,
        }
    }
}

impl Parameters {
    /// Takes the initiator's keys, and returns the target's answers.
    pub(super) fn negotiate(&mut self, settings: &Settings, text: &[u8]) -> Result<String, Refusal> {
        let mut answers = String::new();
        for (key, value) in pairs(text)? {
            let answer = match key {
                "InitiatorName" | "InitiatorAlias" | "SessionType" => continue,
                "TargetName" if value == NAME => continue,
                "TargetName" => return Err(NOT_FOUND),
                "AuthMethod" if choose(value, &["None"]) == "None" => "None".to_owned(),
                "AuthMethod" => return Err(NOT_AUTHENTICATED),
                _ => self.operational(settings, key, value).unwrap_or_else(|| "Reject".to_owned()),
            };
            answers += &format!("{key}={answer}\0");
        }
        Ok(answers)
    }

    /// Returns the answer to an operational key, or `None` if its value is invalid.
    fn operational(&mut self, settings: &Settings, key: &str, value: &str) -> Option<String> {
        let number = || value.parse::<usize>().ok();
        let yes = || choose(value, &["Yes", "No"]) == "Yes";
        let least = |slot: &mut usize, ours: usize| {
            *slot = number()?.min(ours);
            Some(slot.to_string())
        };
        let digest = |slot: &mut bool, supported: bool| {
            let chosen = choose(value, if supported { &["CRC32C", "None"] } else { &["None"] });
            *slot = chosen == "CRC32C";
            Some(chosen.to_owned())
        };
        let boolean = |slot: &mut bool, result: bool| {
            *slot = result;
            Some(if result { "Yes" } else { "No" }.to_owned())
        };
        match key {
            "HeaderDigest" => digest(&mut self.digests.header, settings.digests.header),
            "DataDigest" => digest(&mut self.digests.data, settings.digests.data),
            // Declarations, one of each side.
            "MaxRecvDataSegmentLength" => {
                self.max_send = number().filter(|it| (512..1 << 24).contains(it))?;
                self.max_recv = settings.max_recv;
                Some(settings.max_recv.to_string())
            }
            "InitialR2T" => boolean(&mut self.initial_r2t, yes() || settings.initial_r2t),
            "ImmediateData" => boolean(&mut self.immediate_data, yes() && settings.immediate_data),
            "MaxBurstLength" => least(&mut self.max_burst, settings.max_burst),
            "FirstBurstLength" => least(&mut self.first_burst, settings.first_burst),
            "MaxOutstandingR2T" => least(&mut self.max_outstanding_r2t, settings.max_outstanding_r2t),
            "ErrorRecoveryLevel" | "DefaultTime2Retain" => Some("0".to_owned()),
            "MaxConnections" => Some("1".to_owned()),
            "DataPDUInOrder" | "DataSequenceInOrder" => Some("Yes".to_owned()),
            "DefaultTime2Wait" => Some(number()?.max(2).to_string()),
            _ => Some("NotUnderstood".to_owned()),
        }
    }
}

/// Returns the first value of a list that is supported.
fn choose<'a>(list: &'a str, supported: &[&str]) -> &'a str {
    list.split(',').find(|it| supported.contains(it)).unwrap_or("Reject")
}

/// Splits text into keys and values.
pub(super) fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, Refusal> {
    let text = str::from_utf8(text).map_err(|_| INITIATOR_ERROR)?;
    text.split_terminator('\0').map(|pair| pair.split_once('=').ok_or(INITIATOR_ERROR)).collect()
}
