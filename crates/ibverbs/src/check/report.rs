//! Reports findings as they occur: on standard error, as users of valgrind know it, and as lines of JSON. A summary
//! follows when the process exits, and the exit code says whether there were findings.

use super::finding::{Finding, Kind, Severity};
use super::stack::{Frame, Stack};
use super::suppress::Suppressions;
use ironwarp_engine::config::Config;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum number of findings that are printed. More are only counted.
const MAX_PRINTED: usize = 1000;

/// The findings of this process.
#[derive(Debug, Default)]
pub(super) struct Report {
    suppressions: Suppressions,
    json: Option<PathBuf>,
    /// Numbers of occurrences, by the kind and the first call. Each combination is printed once.
    seen: HashMap<(Kind, Stack), u64>,
    /// Numbers of different findings and remarks, and of different ones that were suppressed.
    findings: usize,
    remarks: usize,
    suppressed: u64,
}

impl Report {
    /// Reads the suppressions that the settings name. An invalid file is reported, and ignored.
    pub(super) fn new(config: &Config) -> Self {
        let json = Some(config.check_json.clone()).filter(|path| !path.as_os_str().is_empty());
        let suppressions = read_suppressions(&config.check_suppressions).unwrap_or_else(|error| {
            print(&format!("ironwarp: {error}\n"));
            Suppressions::default()
        });
        Self { suppressions, json, ..Self::default() }
    }

    /// Prints a finding, unless an equal one was printed before, or it is suppressed.
    pub(super) fn add(&mut self, finding: &Finding) {
        let Finding { kind, text, calls } = finding;
        let first = calls.first().map(|(_, stack)| stack.clone()).unwrap_or_default();
        let times = self.seen.entry((*kind, first)).or_default();
        *times += 1;
        if *times > 1 {
            return;
        }
        let calls: Vec<(&str, Vec<Frame>)> =
            calls.iter().map(|(what, stack)| (*what, stack.resolve())).collect();
        if self.suppressions.matches(*kind, calls.first().map_or(&[], |(_, frames)| frames)) {
            self.suppressed += 1;
            return;
        }
        let number = match kind.severity() {
            Severity::Finding => &mut self.findings,
            Severity::Remark => &mut self.remarks,
        };
        *number += 1;
        if *number <= MAX_PRINTED {
            print(&describe(*number, *kind, text, &calls));
        }
        if let Some(path) = &self.json {
            let line = to_json(*number, *kind, text, &calls);
            if let Err(error) = append(path, &line) {
                print(&format!("ironwarp: failed to write to {}: {error}\n", path.display()));
                self.json = None;
            }
        }
    }

    /// Prints the summary. Returns whether there are findings.
    pub(super) fn finish(&self) -> bool {
        let process = std::process::id();
        let repeated: u64 = self.seen.values().map(|times| times - 1).sum();
        let plural =
            |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        print(&format!(
            "=={process}== ironwarp check: {}, {} suppressed, {}; {repeated} more of the same\n",
            plural(self.findings, "finding"),
            self.suppressed,
            plural(self.remarks, "remark"),
        ));
        self.findings > 0
    }
}

/// Reads a file of suppressions. An empty path is no file.
fn read_suppressions(path: &Path) -> Result<Suppressions, String> {
    if path.as_os_str().is_empty() {
        return Ok(Suppressions::default());
    }
    let describe = |error| format!("failed to read the suppressions {}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(describe)?;
    Suppressions::parse(&text)
        .map_err(|(line, what)| format!("{}:{line}: {what}; ignored all suppressions", path.display()))
}

/// Returns the text of a finding.
fn describe(number: usize, kind: Kind, text: &str, calls: &[(&str, Vec<Frame>)]) -> String {
    let process = std::process::id();
    let remark = if kind.severity() == Severity::Remark { "remark " } else { "" };
    let mut lines = format!("=={process}== {remark}{number}: {}: {text}\n", kind.name());
    for (what, frames) in calls {
        let _ = writeln!(lines, "=={process}==    {what}");
        for (at, frame) in frames.iter().enumerate() {
            let word = if at == 0 { "at" } else { "by" };
            let _ = writeln!(lines, "=={process}==       {word} {frame}");
        }
    }
    lines
}

/// Returns a finding as a line of JSON.
fn to_json(number: usize, kind: Kind, text: &str, calls: &[(&str, Vec<Frame>)]) -> String {
    let severity = match kind.severity() {
        Severity::Finding => "finding",
        Severity::Remark => "remark",
    };
    let calls: Vec<String> = calls
        .iter()
        .map(|(what, frames)| {
            let frames: Vec<String> = frames.iter().map(frame_to_json).collect();
            format!(r#"{{"what":{},"stack":[{}]}}"#, Quoted(what), frames.join(","))
        })
        .collect();
    format!(
        r#"{{"process":{},"number":{number},"severity":"{severity}","kind":"{}","text":{},"calls":[{}]}}{}"#,
        std::process::id(),
        kind.name(),
        Quoted(text),
        calls.join(","),
        "\n"
    )
}

/// Returns a frame as a JSON object, with what is known.
fn frame_to_json(frame: &Frame) -> String {
    let mut fields = vec![format!(r#""address":"{:#x}""#, frame.address)];
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    fields.extend(frame.function.as_ref().map(|name| format!(r#""function":{}"#, Quoted(name))));
    fields.extend(frame.file.as_ref().map(|path| format!(r#""file":{}"#, Quoted(&text(path)))));
    fields.extend(frame.line.map(|line| format!(r#""line":{line}"#)));
    fields.extend(frame.object.as_ref().map(|path| format!(r#""object":{}"#, Quoted(&text(path)))));
    format!("{{{}}}", fields.join(","))
}

/// A text that displays as a JSON string.
struct Quoted<'t>(&'t str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Appends a line to a file by one call, so that lines of several processes do not mix. Follows no link.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let mut file =
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)?;
    file.write_all(line.as_bytes())
}

/// Writes to standard error, by one call.
pub(super) fn print(text: &str) {
    // Not by the standard library, whose lock a forked child may have inherited.
    let _ = rustix::io::retry_on_intr(|| rustix::io::write(std::io::stderr(), text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let frame = Frame { address: 0x10, function: Some("main".to_owned()), ..Frame::default() };
        vec![frame.clone(), Frame { file: Some("/a\"b.c".into()), line: Some(3), ..frame }]
    }

    #[test]
    fn a_finding_names_kind_text_and_calls() {
        let text = describe(2, Kind::UseAfterFree, "request 7", &[("posted", frames())]);
        let process = std::process::id();
        let expected = format!(
            "=={process}== 2: use-after-free: request 7\n=={process}==    posted\n\
             =={process}==       at main\n=={process}==       by main (a\"b.c:3)\n"
        );
        assert_eq!(text, expected);
        assert!(describe(1, Kind::Leak, "", &[]).contains("== remark 1: leak: "));
    }

    #[test]
    fn json_is_one_line_and_quoted() {
        let line = to_json(1, Kind::Leak, "a\n\"b\"", &[("created", frames())]);
        let expected = format!(
            r#"{{"process":{},"number":1,"severity":"remark","kind":"leak","text":"a\u000a\"b\"","calls":[{{"what":"created","stack":[{},{}]}}]}}"#,
            std::process::id(),
            r#"{"address":"0x10","function":"main"}"#,
            r#"{"address":"0x10","function":"main","file":"/a\"b.c","line":3}"#,
        );
        assert_eq!(line, expected + "\n");
    }

    #[test]
    fn equal_findings_are_counted_once() {
        let mut report = Report::default();
        let finding = Finding { kind: Kind::Leak, text: String::new(), calls: Vec::new() };
        report.add(&finding);
        report.add(&finding);
        assert_eq!((report.findings, report.remarks), (0, 1));
        assert!(!report.finish());
        report.add(&Finding { kind: Kind::UseAfterFree, ..finding });
        assert!(report.finish());
    }
}
