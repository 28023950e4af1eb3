//! The text format of keys and values (RFC 7143 §6.1).

use std::fmt::Write;
use std::str;

/// Maximum length of the text of one side in one step of a negotiation, which can span several PDUs.
pub(crate) const MAX_TEXT: usize = 64 * 1024;
/// Maximum number of keys in it.
pub(crate) const MAX_KEYS: usize = 64;
/// Maximum length of a key.
const MAX_KEY: usize = 63;

/// A text that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadText {
    /// The text is too long.
    #[error("the text exceeds {MAX_TEXT} bytes")]
    TooLong,
    /// There are too many keys.
    #[error("the text has more than {MAX_KEYS} keys")]
    TooManyKeys,
    /// The last pair has no end.
    #[error("no zero byte after the last key")]
    Unterminated,
    /// A pair has no valid key before an equals sign, or its value is not UTF-8 or has control characters.
    #[error("malformed key or value in pair {0}")]
    Malformed(usize),
    /// A key occurs twice.
    #[error("key {0} occurs twice")]
    Repeated(String),
}

/// A text to send.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text(Vec<u8>);

impl Text {
    /// Appends a key and its value.
    pub(crate) fn push(&mut self, key: &str, value: &str) {
        for part in [key, "=", value, "\0"] {
            self.0.extend_from_slice(part.as_bytes());
        }
    }

    /// Returns the bytes to send.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Splits a text into keys and values. A key other than `TargetAddress` may occur once only.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, BadText> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    if text.len() > MAX_TEXT {
        return Err(BadText::TooLong);
    }
    let Some(text) = text.strip_suffix(b"\0") else {
        return if text.is_empty() { Ok(pairs) } else { Err(BadText::Unterminated) };
    };
    // Some targets add more zero bytes at the end.
    let end = text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    for pair in text[..end].split(|&byte| byte == 0) {
        if pairs.len() == MAX_KEYS {
            return Err(BadText::TooManyKeys);
        }
        let (key, value) = parse_pair(pair).ok_or(BadText::Malformed(pairs.len() + 1))?;
        if key != "TargetAddress" && pairs.iter().any(|(other, _)| *other == key) {
            return Err(BadText::Repeated(key.to_owned()));
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn parse_pair(pair: &[u8]) -> Option<(&str, &str)> {
    let (key, value) = str::from_utf8(pair).ok()?.split_once('=')?;
    // `#` is in no standard label, but in X#NodeArchitecture.
    let of_key = |byte: u8| byte.is_ascii_alphanumeric() || b".-+@_#".contains(&byte);
    let good = key.len() <= MAX_KEY && key.starts_with(|first: char| first.is_ascii_uppercase());
    (good && key.bytes().all(of_key) && !value.contains(char::is_control)).then_some((key, value))
}

/// Parses a boolean value.
pub(crate) fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// Parses a number of up to 32 bits: decimal, or hexadecimal after `0x`.
pub(crate) fn number(value: &str) -> Option<u32> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    // The standard library accepts a sign.
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, radix).ok())?
}

/// Parses a binary value of 1 to `max` bytes: hexadecimal after `0x`, base64 after `0b`.
pub(crate) fn binary(value: &str, max: usize) -> Option<Vec<u8>> {
    let (prefix, digits) = value.as_bytes().split_at_checked(2)?;
    let bytes = match prefix {
        b"0x" | b"0X" if digits.len().div_ceil(2) <= max => from_hex(digits),
        b"0b" | b"0B" if digits.len() / 4 <= max.div_ceil(3) => from_base64(digits),
        _ => None,
    }?;
    (1..=max).contains(&bytes.len()).then_some(bytes)
}

/// Decodes hexadecimal digits. If their number is odd, the first digit is a byte of its own.
fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (first, pairs) = digits.split_at(digits.len() % 2);
    let mut bytes = first.iter().map(|&digit| nibble(digit)).collect::<Option<Vec<_>>>()?;
    for pair in pairs.chunks_exact(2) {
        bytes.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
    }
    Some(bytes)
}

/// Decodes base64 (RFC 4648 §4). The padding may be missing.
fn from_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let padding = digits.iter().rev().take_while(|&&digit| digit == b'=').count();
    let unpadded = &digits[..digits.len() - padding];
    if unpadded.len() % 4 == 1 || padding > 0 && (padding > 2 || !digits.len().is_multiple_of(4)) {
        return None;
    }
    let mut bytes = Vec::with_capacity(unpadded.len() * 3 / 4);
    for group in unpadded.chunks(4) {
        let mut word = 0_u32;
        for &digit in group {
            word = word << 6 | sextet(digit)?;
        }
        let [_, decoded @ ..] = (word << (6 * (4 - group.len()))).to_be_bytes();
        let (kept, dropped) = decoded.split_at(group.len() - 1);
        if dropped.iter().any(|&byte| byte != 0) {
            return None; // bits that encode nothing
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

/// Encodes a binary value as hexadecimal digits after `0x`.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string does not fail
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_split_at_the_first_equals_sign() {
        assert_eq!(parse(b"A=1\0X-b.c=x=y\0E=\0"), Ok(vec![("A", "1"), ("X-b.c", "x=y"), ("E", "")]));
        assert_eq!(parse(b""), Ok(vec![]));
        assert_eq!(parse(b"A=1\0\0\0"), Ok(vec![("A", "1")]));
        let mut text = Text::default();
        text.push("TargetName", "iqn.2026-01.example:disk");
        text.push("AuthMethod", "None");
        let pairs = [("TargetName", "iqn.2026-01.example:disk"), ("AuthMethod", "None")];
        assert_eq!(parse(text.as_bytes()).unwrap(), pairs);
    }

    #[test]
    fn malformed_text_is_refused() {
        assert_eq!(parse(b"A=1\0B=2"), Err(BadText::Unterminated));
        assert_eq!(parse(b"A=1\0A=1\0"), Err(BadText::Repeated("A".into())));
        assert_eq!(parse(b"TargetAddress=1\0TargetAddress=2\0").unwrap().len(), 2);
        for (bad, at) in [
            (&b"A\0"[..], 1),
            (b"=1\0", 1),
            (b"a=1\0", 1),
            (b"A=1\0\0B=2\0", 2),
            (b"A=1\0B b=2\0", 2),
            (b"A=\xff\0", 1),
            (b"A=\x1b[2J\0", 1),
        ] {
            assert_eq!(parse(bad), Err(BadText::Malformed(at)), "{bad:?}");
        }
        let label = |len| [&vec![b'A'; len][..], b"=1\0"].concat();
        assert_eq!(parse(&label(63)).unwrap().len(), 1);
        assert_eq!(parse(&label(64)), Err(BadText::Malformed(1)));
    }

    #[test]
    fn length_and_number_of_keys_are_bounded() {
        let keys =
            |count: usize| (0..count).flat_map(|key| format!("K{key}=1\0").into_bytes()).collect::<Vec<_>>();
        assert_eq!(parse(&keys(MAX_KEYS)).unwrap().len(), MAX_KEYS);
        assert_eq!(parse(&keys(MAX_KEYS + 1)), Err(BadText::TooManyKeys));
        let long = |len: usize| [b"A=", &vec![b'1'; len - 3][..], b"\0"].concat();
        assert_eq!(parse(&long(MAX_TEXT)).unwrap().len(), 1);
        assert_eq!(parse(&long(MAX_TEXT + 1)), Err(BadText::TooLong));
    }

    #[test]
    fn numbers_and_booleans_have_one_reading() {
        for (text, value) in [
            ("0", Some(0)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("0x1fF", Some(511)),
            ("", None),
            ("0x", None),
            ("+1", None),
            ("-1", None),
            ("0x+1", None),
            ("1a", None),
            ("1 ", None),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
        assert_eq!(["Yes", "No", "yes", ""].map(boolean), [Some(true), Some(false), None, None]);
    }

    #[test]
    fn binary_values_are_decoded() {
        // RFC 4648 §10.
        for (text, value) in [
            ("0bZg==", "f"),
            ("0bZm8=", "fo"),
            ("0BZm9v", "foo"),
            ("0bZm9vYg==", "foob"),
            ("0bZm9vYmE=", "fooba"),
            ("0bZm9vYmFy", "foobar"),
            ("0bZg", "f"),
            ("0x666F6f", "foo"),
        ] {
            assert_eq!(binary(text, 6).as_deref(), Some(value.as_bytes()), "{text}");
        }
        assert_eq!(binary("0x123", 2), Some(vec![1, 0x23]));
        assert_eq!(binary(&to_hex(&[0, 0xa5, 0xff]), 3), Some(vec![0, 0xa5, 0xff]));
        let bad = [
            "",
            "0",
            "0x",
            "0b",
            "12",
            "0xg0",
            "0b=",
            "0bZ",
            "0bZ===",
            "0bZg=",
            "0bZg=a",
            "0bZh==",
            "0bZm9v====",
            "0xé0",
        ];
        for text in bad {
            assert_eq!(binary(text, 100), None, "{text}");
        }
        assert_eq!(binary("0x010203", 2), None);
        assert_eq!(binary("0bZm9vYmFy", 5), None);
    }
}
