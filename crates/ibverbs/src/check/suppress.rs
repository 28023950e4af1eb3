//! Suppressions: findings that are not reported, in the format that users of valgrind know.
//!
//! ```text
//! {
//!    a name, for people
//!    ironwarp:send-buffer-changed
//!    fun:uct_*
//!    ...
//!    obj:*/libmpi.so*
//! }
//! ```
//! The frames are those of the first call of a finding, innermost first. `...` matches any number of frames, `*` any
//! characters and `?` one. A finding is suppressed if all frames of the suppression match, in order.

use super::finding::Kind;
use super::stack::Frame;

/// The prefix of kinds, where valgrind has the name of a tool.
const TOOL: &str = "ironwarp:";

/// A suppression.
#[derive(Debug, PartialEq, Eq)]
struct Suppression {
    /// Pattern of the name of the kind.
    kind: String,
    frames: Vec<Pattern>,
}

/// What a frame of a suppression matches.
#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    /// The name of the function.
    Function(String),
    /// The path of the executable or library.
    Object(String),
    /// Any number of frames.
    Any,
}

/// The suppressions of a file.
#[derive(Debug, Default)]
pub(super) struct Suppressions(Vec<Suppression>);

impl Suppressions {
    /// Parses a file. Fails with the number of the first invalid line, and what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut all = Vec::new();
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        while let Some((number, line)) = lines.next() {
            if line != "{" {
                return Err((number, format!("expected `{{`, found `{line}`")));
            }
            let end = || (number, "no `}` ends this suppression".to_owned());
            let _name = lines.next().ok_or_else(end)?;
            let (at, kind) = lines.next().ok_or_else(end)?;
            let kind = kind
                .strip_prefix(TOOL)
                .ok_or_else(|| (at, format!("expected `{TOOL}KIND`, found `{kind}`")))?;
            let mut frames = Vec::new();
            loop {
                let (at, line) = lines.next().ok_or_else(end)?;
                frames.push(match line.split_once(':') {
                    _ if line == "}" => break,
                    _ if line == "..." => Pattern::Any,
                    Some(("fun", name)) => Pattern::Function(name.to_owned()),
                    Some(("obj", name)) => Pattern::Object(name.to_owned()),
                    _ => return Err((at, format!("expected `fun:`, `obj:`, `...` or `}}`, found `{line}`"))),
                });
            }
            all.push(Suppression { kind: kind.to_owned(), frames });
        }
        Ok(Self(all))
    }

    /// Returns whether a finding of this kind, made at these frames, is suppressed.
    pub(super) fn matches(&self, kind: Kind, frames: &[Frame]) -> bool {
        self.0.iter().any(|one| {
            matches_text(one.kind.as_bytes(), kind.name().as_bytes()) && matches_frames(&one.frames, frames)
        })
    }
}

/// Returns whether the patterns match the first frames.
fn matches_frames(patterns: &[Pattern], frames: &[Frame]) -> bool {
    let Some((pattern, patterns)) = patterns.split_first() else { return true };
    let matches = |frame: &Frame| match pattern {
        Pattern::Function(name) => {
            frame.function.as_ref().is_some_and(|function| matches_text(name.as_bytes(), function.as_bytes()))
        }
        Pattern::Object(name) => frame
            .object
            .as_ref()
            .is_some_and(|object| matches_text(name.as_bytes(), object.as_os_str().as_encoded_bytes())),
        Pattern::Any => false,
    };
    match pattern {
        Pattern::Any => (0..=frames.len()).any(|skipped| matches_frames(patterns, &frames[skipped..])),
        _ => {
            frames.split_first().is_some_and(|(frame, rest)| matches(frame) && matches_frames(patterns, rest))
        }
    }
}

/// Returns whether a text matches a pattern with `*` and `?`.
fn matches_text(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| matches_text(rest, &text[skipped..])),
        ([b'?', rest @ ..], [_, text @ ..]) => matches_text(rest, text),
        ([first, rest @ ..], [found, text @ ..]) => first == found && matches_text(rest, text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# of UCX\n{\n   flush\n   ironwarp:send-*\n   fun:uct_*\n   ...\n   obj:*/libmpi.so.?\n}\n";

    fn frame(function: &str, object: &str) -> Frame {
        Frame { function: Some(function.to_owned()), object: Some(object.into()), ..Frame::default() }
    }

    #[test]
    fn a_finding_with_all_frames_is_suppressed() {
        let file = Suppressions::parse(FILE).unwrap();
        let frames = [
            frame("uct_rc_flush", "/lib/libuct.so"),
            frame("ucp_progress", "/lib/libucp.so"),
            frame("MPI_Wait", "/lib/libmpi.so.4"),
            frame("main", "/bin/program"),
        ];
        assert!(file.matches(Kind::SendBufferChanged, &frames));
        assert!(!file.matches(Kind::Leak, &frames));
        assert!(!file.matches(Kind::SendBufferChanged, &frames[1..]));
        assert!(!file.matches(Kind::SendBufferChanged, &frames[..2]));
        assert!(!file.matches(Kind::SendBufferChanged, &[]));
    }

    #[test]
    fn a_suppression_without_frames_matches_all() {
        let file = Suppressions::parse("{\nall\nironwarp:leak\n}").unwrap();
        assert!(file.matches(Kind::Leak, &[]) && file.matches(Kind::Leak, &[frame("main", "/bin/program")]));
        assert!(!file.matches(Kind::UseAfterFree, &[]));
    }

    #[test]
    fn an_invalid_line_is_named() {
        for (text, line) in [
            ("leak", 1),
            ("{\nname\nleak\n}", 3),
            ("{\nname\nironwarp:leak\nfunction:main\n}", 4),
            ("\n{\nname\nironwarp:leak\nfun:main", 2),
            ("{", 1),
        ] {
            assert_eq!(Suppressions::parse(text).unwrap_err().0, line, "{text}");
        }
    }
}
