//! An explanation, and how it is printed.

use ironwarp::queue::ErrorOrigin;

/// The explanation of one code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Explanation {
    /// The code, its kind, and its usual description.
    pub(super) title: String,
    /// What happened.
    pub(super) what: String,
    /// Who caused it.
    pub(super) at_fault: &'static str,
    /// Typical causes.
    pub(super) causes: &'static [&'static str],
    /// Where to look next.
    pub(super) look: &'static [&'static str],
}

impl Explanation {
    /// Returns the text below the title.
    pub(super) fn body(&self) -> String {
        let mut body = format!("  what happened   {}\n  at fault        {}\n", self.what, self.at_fault);
        for (label, lines) in [("typical causes", self.causes), ("look at", self.look)] {
            for (at, line) in lines.iter().enumerate() {
                let label = if at == 0 { label } else { "" };
                body += &format!("  {label:<15} - {line}\n");
            }
        }
        body.trim_end().to_owned()
    }
}

/// Returns a description of who caused an error.
pub(super) const fn at_fault(origin: ErrorOrigin) -> &'static str {
    match origin {
        ErrorOrigin::Program => "this program",
        ErrorOrigin::Peer => "the program at the other end",
        ErrorOrigin::Adapter => "Ironwarp",
        ErrorOrigin::Network => "the network, or the other end is gone",
        _ => "nobody: this is expected",
    }
}

/// Returns the words of a text in lower case, separated by single spaces, so that different spellings compare equal.
pub(super) fn normalise(text: &str) -> String {
    let letters = text.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    letters.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}
