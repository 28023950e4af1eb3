//! Negotiation of operational parameters (RFC 7143 §6.2 and §13): offers, and which answers they allow.

use crate::error::LoginError;
use crate::parameters::{DigestPolicy, LENGTHS, Negotiated, Options};
use crate::text::{Text, boolean, number, parse};
use ironwarp_wire::iscsi::Digests;
use std::ops::RangeInclusive;

/// Length of an answer that is shown in errors.
const SHOWN: usize = 64;
/// MaxRecvDataSegmentLength of a target that does not declare one (RFC 7143 §13.12).
const DEFAULT_SEGMENT: u32 = 8192;
/// Keys with which a target describes itself, in any stage. They need no answer.
const DESCRIPTIVE: [&str; 3] = ["TargetAddress", "TargetAlias", "TargetPortalGroupTag"];
/// Obsolete keys, which are answered with Reject (RFC 7143 §13.25).
const OBSOLETE: [&str; 4] = ["IFMarker", "OFMarker", "IFMarkInt", "OFMarkInt"];
/// Keys of the security stage.
const SECURITY: [&str; 6] = ["AuthMethod", "CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"];

/// The value that is offered for a key, and the rule for the answer.
#[derive(Clone, Debug)]
enum Offer {
    /// The result is true if both ends say so.
    And(bool),
    /// The result is true if one end says so.
    Or(bool),
    /// The upper end of the range is offered, the answer is in the range.
    AtMost(RangeInclusive<u32>),
    /// The lower end of the range is offered, the answer is in the range.
    AtLeast(RangeInclusive<u32>),
    /// Both ends declare a value of their own, in [`LENGTHS`].
    Declare(u32),
    /// A digest.
    Digest(DigestPolicy),
}

/// The operational parameters during their negotiation.
#[derive(Debug)]
pub(crate) struct Negotiation {
    /// Keys, offers and results. Booleans and digests are 0 or 1.
    keys: Vec<(&'static str, Offer, Option<u32>)>,
    /// The target has answered FirstBurstLength with Irrelevant.
    irrelevant: bool,
}

impl Offer {
    /// Returns the value to send.
    fn value(&self) -> String {
        match self {
            Self::And(offer) | Self::Or(offer) => if *offer { "Yes" } else { "No" }.to_owned(),
            Self::AtMost(range) => range.end().to_string(),
            Self::AtLeast(range) => range.start().to_string(),
            Self::Declare(len) => len.to_string(),
            Self::Digest(DigestPolicy::None) => "None".to_owned(),
            Self::Digest(DigestPolicy::Prefer) => "CRC32C,None".to_owned(),
            Self::Digest(DigestPolicy::Require) => "CRC32C".to_owned(),
        }
    }

    /// Returns the value of an answer, or `None` if the offer does not allow it.
    fn result(&self, answer: &str) -> Option<u32> {
        match self {
            Self::And(offer) => boolean(answer).filter(|&result| *offer || !result).map(u32::from),
            Self::Or(offer) => boolean(answer).filter(|&result| !*offer || result).map(u32::from),
            Self::AtMost(range) | Self::AtLeast(range) => number(answer).filter(|it| range.contains(it)),
            Self::Declare(_) => number(answer).filter(|it| LENGTHS.contains(it)),
            Self::Digest(policy) => match (answer, policy) {
                ("None", DigestPolicy::None | DigestPolicy::Prefer) => Some(0),
                ("CRC32C", DigestPolicy::Prefer | DigestPolicy::Require) => Some(1),
                _ => None,
            },
        }
    }

    /// Returns the result if there is no answer, which only some offers allow.
    fn unanswered(&self) -> Option<u32> {
        match self {
            Self::And(false) => Some(0),
            Self::Or(true) => Some(1),
            Self::Declare(_) => Some(DEFAULT_SEGMENT),
            _ => None,
        }
    }
}

impl Negotiation {
    /// Prepares the offers.
    pub(crate) fn new(options: &Options) -> Self {
        let length = |len| Offer::AtMost(*LENGTHS.start()..=len);
        let keys = [
            ("HeaderDigest", Offer::Digest(options.header_digest)),
            ("DataDigest", Offer::Digest(options.data_digest)),
            ("MaxRecvDataSegmentLength", Offer::Declare(options.max_recv_data_segment)),
            ("InitialR2T", Offer::Or(options.initial_r2t)),
            ("ImmediateData", Offer::And(options.immediate_data)),
            ("MaxBurstLength", length(options.max_burst)),
            ("FirstBurstLength", length(options.first_burst)),
            ("MaxConnections", Offer::AtMost(1..=1)),
            ("MaxOutstandingR2T", Offer::AtMost(1..=1)),
            ("ErrorRecoveryLevel", Offer::AtMost(0..=0)),
            ("DefaultTime2Wait", Offer::AtLeast(2..=3600)),
            ("DefaultTime2Retain", Offer::AtMost(0..=0)),
            ("DataPDUInOrder", Offer::Or(true)),
            ("DataSequenceInOrder", Offer::Or(true)),
        ];
        Self { keys: keys.map(|(key, offer)| (key, offer, None)).into(), irrelevant: false }
    }

    /// Returns the offers as text.
    pub(crate) fn offers(&self) -> Text {
        let mut text = Text::default();
        for (key, offer, _) in &self.keys {
            text.push(key, &offer.value());
        }
        text
    }

    /// Takes the answers in a response, and returns the text of the next request: answers to keys of the target.
    pub(crate) fn take(&mut self, response: &[u8]) -> Result<Text, LoginError> {
        let offered: Vec<_> = self.keys.iter().map(|(key, ..)| *key).collect();
        let (answers, replies) = sort(response, &offered)?;
        for (index, value) in answers {
            let (key, offer, result) = &mut self.keys[index];
            if result.is_some() {
                return Err(LoginError::NotOffered((*key).to_owned()));
            }
            if *key == "FirstBurstLength" && value == "Irrelevant" {
                self.irrelevant = true;
                *result = Some(0);
                continue;
            }
            *result = Some(offer.result(value).ok_or_else(|| bad_answer(key, offer.value(), value))?);
        }
        Ok(replies)
    }

    /// Fills in the results of a complete negotiation.
    pub(crate) fn finish(&self, session: &mut Negotiated) -> Result<(), LoginError> {
        for (key, offer, result) in &self.keys {
            let value = result.or_else(|| offer.unanswered()).ok_or(LoginError::Unanswered(key))?;
            match *key {
                "HeaderDigest" => session.digests.header = value == 1,
                "DataDigest" => session.digests.data = value == 1,
                "MaxRecvDataSegmentLength" => session.target_max_recv_data_segment = value,
                "InitialR2T" => session.initial_r2t = value == 1,
                "ImmediateData" => session.immediate_data = value == 1,
                "MaxBurstLength" => session.max_burst = value,
                "FirstBurstLength" => session.first_burst = value,
                _ => {} // one value only, or not used at error recovery level 0
            }
        }
        if self.irrelevant && (session.immediate_data || !session.initial_r2t) {
            return Err(LoginError::Protocol("FirstBurstLength=Irrelevant, but unsolicited data is allowed"));
        }
        if session.first_burst > session.max_burst {
            return Err(LoginError::Protocol("FirstBurstLength exceeds MaxBurstLength"));
        }
        Ok(())
    }
}

impl Negotiated {
    /// Returns the parameters before the negotiation.
    pub(crate) fn new(options: &Options, isid: [u8; 6]) -> Self {
        Self {
            digests: Digests::default(),
            max_recv_data_segment: options.max_recv_data_segment,
            target_max_recv_data_segment: DEFAULT_SEGMENT,
            max_burst: options.max_burst,
            first_burst: options.first_burst,
            initial_r2t: true,
            immediate_data: false,
            isid,
            tsih: 0,
            cmd_sn: 0,
            exp_stat_sn: 0,
            max_cmd_sn: 0,
        }
    }
}

/// The values of answers, each with the index of its key among the offered ones.
type Answers<'t> = Vec<(usize, &'t str)>;

/// Finds the answers to `offered` keys in a response, and returns them with the replies to other keys of the target.
pub(crate) fn sort<'t>(response: &'t [u8], offered: &[&str]) -> Result<(Answers<'t>, Text), LoginError> {
    let (mut answers, mut replies) = (Vec::new(), Text::default());
    for (key, value) in parse(response)? {
        if let Some(index) = offered.iter().position(|it| *it == key) {
            answers.push((index, value));
        } else if OBSOLETE.contains(&key) {
            replies.push(key, "Reject");
        } else if SECURITY.contains(&key) || is_operational(key) {
            return Err(LoginError::NotOffered(key.to_owned()));
        } else if !DESCRIPTIVE.contains(&key) {
            replies.push(key, "NotUnderstood");
        }
    }
    Ok((answers, replies))
}

/// Returns whether a key is one of an operational parameter.
fn is_operational(key: &str) -> bool {
    let options = Options::new("", "");
    Negotiation::new(&options).keys.iter().any(|(it, ..)| *it == key)
}

/// Returns the error for an answer that the offer does not allow.
pub(crate) fn bad_answer(key: &'static str, offered: String, value: &str) -> LoginError {
    let advice = match (key, value) {
        ("AuthMethod", _) if offered == "None" => "the target requires authentication: set CHAP credentials",
        ("AuthMethod", _) => {
            "the target does not authenticate with CHAP: enable CHAP there, or use no credentials"
        }
        ("HeaderDigest" | "DataDigest", _) if offered == "None" => "the target requires a digest: allow it",
        ("HeaderDigest" | "DataDigest", _) => "the target does not support this digest: do not require it",
        (_, "Reject") => "offer another value",
        _ => "the protocol does not allow this answer",
    };
    LoginError::Answer { key, offered, value: value.chars().take(SHOWN).collect(), advice }
}
