//! The commands of a page. A block `sh` runs in a terminal and must succeed. A block `sh server` runs in
//! another terminal; the next block starts once it listens on a port, or on the TCP port behind it if there
//! is a number, and it must have succeeded at the end. `sh server stays` never ends. A block `text output` is
//! the output of the previous block, except for values.
//!
//! Root runs `sh install` first, once, in a fresh Debian of the release that the page names; that system is
//! kept. A page that names no release installs into its folder. Of `sh checkout`, `sh package` and `sh tarball`
//! in the README, a reader runs one.

/// A block of commands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The line of the page where it begins.
    pub(super) line: usize,
    pub(super) terminal: Terminal,
    /// The port that a server listens on when it is ready, or `None` for any port.
    pub(super) port: Option<u16>,
    pub(super) commands: String,
    pub(super) output: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terminal {
    Here,
    Server,
    /// A server that runs forever.
    Stays,
}

/// The Debian release that the commands of a page run in, or `None` for this system.
pub(super) fn release(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once("<!-- commands in Debian ")?;
    rest.split_once(" -->").map(|(release, _)| release)
}

/// The commands that install what the others need.
pub(super) fn installation(page: &str) -> Vec<Step> {
    blocks(page, "sh install")
}

/// The commands of all blocks of a kind, such as `sh install`.
pub(super) fn blocks(page: &str, kind: &str) -> Vec<Step> {
    let blocks = fenced(page).into_iter().filter(|(_, language, _)| *language == kind);
    blocks
        .map(|(line, _, commands)| Step {
            line,
            terminal: Terminal::Here,
            port: None,
            commands,
            output: None,
        })
        .collect()
}

/// The steps of a page, in order.
pub(super) fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, language, text) in fenced(page) {
        let (kind, port) = match language.rsplit_once(' ').map(|(kind, port)| (kind, port.parse())) {
            Some((kind, Ok(port))) => (kind, Some(port)),
            _ => (language, None),
        };
        let step = |terminal| Step { line, terminal, port, commands: text.clone(), output: None };
        match kind {
            "sh" => steps.push(step(Terminal::Here)),
            "sh server" => steps.push(step(Terminal::Server)),
            "sh server stays" => steps.push(step(Terminal::Stays)),
            "text output" => {
                if let Some(last) = steps.last_mut() {
                    last.output = Some(text);
                }
            }
            _ => {}
        }
    }
    steps
}

/// The fenced blocks: line number, info string, and text.
pub(super) fn fenced(page: &str) -> Vec<(usize, &str, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, &str, String)> = None;
    for (number, line) in (1..).zip(page.lines()) {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => open = Some((number + 1, language.trim(), String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some((_, _, text)), None) => *text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    blocks
}

/// The difference between the output that a page shows and the actual output, except for values such as
/// numbers and addresses.
pub(super) fn difference(shown: &str, printed: &str) -> Option<String> {
    let lines = |text: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(stable).collect();
        text.lines().filter(|line| !line.trim().is_empty()).map(words).collect()
    };
    let (shown, printed) = (lines(shown), lines(printed));
    let other = shown.iter().zip(&printed).find(|(one, other)| one != other);
    if let Some((one, other)) = other {
        return Some(format!(
            "the page shows\n  {}\nbut the output is\n  {}",
            one.join(" "),
            other.join(" ")
        ));
    }
    (shown.len() != printed.len())
        .then(|| format!("the page shows {} lines, but the output has {}", shown.len(), printed.len()))
}

/// Normalises a word for comparison: one that begins like a number or an address is a value.
fn stable(word: &str) -> String {
    let value = word.starts_with(|c: char| c.is_ascii_digit() || c == ':') || word.contains("::");
    if value { "#".into() } else { word.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_steps() {
        let page = "# A\n```sh server stays 80\nz\n```\n```sh server\na &\nb\n```\ntext\n```sh\nc\n```\n```text output\nd 1\n```\n```text\ne\n```\n";
        let step = |line, terminal, port, commands: &str| Step {
            line,
            terminal,
            port,
            commands: commands.into(),
            output: None,
        };
        let first = step(3, Terminal::Stays, Some(80), "z\n");
        let server = step(6, Terminal::Server, None, "a &\nb\n");
        let here = Step { output: Some("d 1\n".into()), ..step(11, Terminal::Here, None, "c\n") };
        assert_eq!(steps(page), [first, server, here]);
    }

    #[test]
    fn what_is_installed_is_no_step() {
        let page = "<!-- commands in Debian trixie -->\n```sh install\na\n```\n```sh\nb\n```\n";
        assert_eq!(release(page), Some("trixie"));
        let commands = |steps: Vec<Step>| steps.into_iter().map(|step| step.commands).collect::<Vec<_>>();
        assert_eq!(commands(installation(page)), ["a\n"]);
        assert_eq!(commands(steps(page)), ["b\n"]);
        assert_eq!(release("# A\n"), None);
    }

    #[test]
    fn values_may_differ_and_words_may_not() {
        let shown = "GID ::ffff:127.0.0.1\n\n1000 iters in 0.5 seconds\n";
        assert_eq!(difference(shown, "GID  ::1\n1000 iters in 12 seconds\n"), None);
        assert!(difference(shown, "GID ::1\n1000 iters in vain\n").is_some());
        assert!(difference(shown, "GID ::1\n").is_some());
        assert!(difference(shown, "GID none\n1000 iters in 12 seconds\n").is_some());
    }
}
