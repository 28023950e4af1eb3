//! Tests of `ironwarp run --check`. A small C program makes each mistake, which is reported once, with the call that made
//! it. The same program without the mistake has no findings.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/check");
const MISTAKES: &str = include_str!("mistakes.c");
const KINDS: &str = include_str!("../../src/check/finding.rs");

/// Kinds that other tests find.
const ELSEWHERE: [&str; 1] = ["device-limit"];

/// Variants of the programs: the extended calls, and a shared receive queue.
const EXTENDED: &[&str] = &["extended", "shared"];
const ALL_VARIANTS: [&[&str]; 4] = [&[], &["extended"], &["shared"], EXTENDED];

/// A mistake of `mistakes.c`.
struct Mistake {
    name: &'static str,
    kind: &'static str,
    /// Parts of the text. `{a}` and `{b}` are the numbers of the queue pairs.
    text: &'static [&'static str],
    /// Whether the mistake is in requests, so that it depends on the calls that post them.
    in_requests: bool,
    /// What the rest of the program makes unavoidable.
    also: &'static [&'static str],
    /// The exit code, if not that of the kind.
    code: Option<i32>,
}

const fn request(name: &'static str, kind: &'static str, text: &'static [&'static str]) -> Mistake {
    Mistake { name, kind, text, in_requests: true, also: &[], code: None }
}

const fn object(name: &'static str, kind: &'static str, text: &'static [&'static str]) -> Mistake {
    Mistake { in_requests: false, ..request(name, kind, text) }
}

/// The requests of a, and the receives of b, as reports name them.
const REQUEST: &str = "request 20965 of queue pair {a}";
const RECEIVE: &str = "request 20165 of {receives}";

const ALL: &[Mistake] = &[
    request("send_buffer_changed", "send-buffer-changed", &[REQUEST, "64 bytes at 0x"]),
    request("unsignaled_buffer_changed", "send-buffer-changed", &[REQUEST, "64 bytes at 0x"]),
    request("changed_after_bind", "send-buffer-changed", &[REQUEST, "64 bytes at 0x"]),
    request("receive_buffer_read_early", "receive-buffer-read-early", &[REQUEST, RECEIVE]),
    Mistake {
        also: &["waited-for-receive"],
        ..request(
            "read_sink_read_early",
            "receive-buffer-read-early",
            &[REQUEST, "request 20964 of queue pair {a}"],
        )
    },
    request("receive_buffer_written", "receive-buffer-written", &[RECEIVE, "64 bytes at 0x"]),
    request("region_deregistered_in_use", "region-deregistered-in-use", &["key 0x", RECEIVE]),
    object("datagram_buffer_deregistered", "region-deregistered-in-use", &["key 0x", RECEIVE]),
    request("region_deregistered_before_message", "region-deregistered-in-use", &["key 0x", RECEIVE]),
    request("memory_unmapped_in_use", "memory-unmapped-in-use", &["4096 bytes at 0x", RECEIVE]),
    request("memory_freed_in_use", "memory-freed-in-use", &[" bytes at 0x", REQUEST]),
    request("receive_buffer_freed_in_use", "memory-freed-in-use", &[" bytes at 0x", RECEIVE]),
    request("large_block_freed_in_use", "memory-unmapped-in-use", &[" bytes at 0x", RECEIVE]),
    request("memory_reallocated_in_use", "memory-freed-in-use", &[" bytes at 0x", RECEIVE]),
    request("stale_registration", "stale-registration", &[REQUEST, "memory at 0x"]),
    request("use_after_free", "use-after-free", &[REQUEST, "memory at 0x"]),
    request("large_block_used_after_free", "stale-registration", &[REQUEST, "memory at 0x"]),
    request("misaligned_atomic", "misaligned-atomic", &[REQUEST, "the target 0x"]),
    request("missing_rights", "missing-rights", &[REQUEST]),
    request("missing_local_rights", "missing-rights", &[RECEIVE, "requires LOCAL_WRITE"]),
    request("bad_memory_key", "bad-memory-key", &[REQUEST, "invalid tag"]),
    request("bad_memory_range", "bad-memory-key", &[REQUEST, "out of range: the region has 4096 bytes"]),
    request("key_of_another_domain", "bad-memory-key", &[REQUEST, "protection domain"]),
    request("bad_remote_range", "bad-memory-key", &[REQUEST, "base or bounds violation"]),
    request("bad_remote_key", "bad-memory-key", &[REQUEST, "invalid STag"]),
    request(
        "cq_may_overrun",
        "cq-may-overrun",
        &["completion queue 2 holds 2 completions, but 3 are possible"],
    ),
    request(
        "unpolled_completion",
        "cq-may-overrun",
        &["completion queue 1 holds 2 completions, but 3 are possible"],
    ),
    request("waited_for_receive", "waited-for-receive", &["queue pair {b} waited"]),
    request("send_queue_unsignaled", "send-queue-unsignaled", &["the send queue of queue pair {a} is full"]),
    request("unsignaled_for_ever", "send-queue-unsignaled", &["the send queue of queue pair {a}"]),
    object("unacknowledged_events", "unacknowledged-events", &["completion queue 1", "1 event that"]),
    request("post_in_error_state", "post-in-error-state", &[REQUEST]),
    request("post_before_connect", "post-in-error-state", &[REQUEST, "state \"init\""]),
    object("leak", "leak", &["ibv_pd 0x"]),
    object("destroy_busy", "destroy-busy", &["ibv_pd 0x", "ibv_mr 0x", "ibv_qp 0x"]),
    request("destroy_with_requests", "destroy-with-requests", &["queue pair {a}", "1 of its requests"]),
    Mistake {
        also: &["waited-for-receive"],
        ..request(
            "destroy_before_completion",
            "destroy-before-completion",
            &["queue pair {a}", "1 of its requests"],
        )
    },
    object("use_after_destroy", "use-after-destroy", &["ibv_qp 0x"]),
    object("post_after_destroy", "use-after-destroy", &["ibv_qp 0x"]),
    object("poll_after_destroy", "use-after-destroy", &["ibv_cq 0x"]),
    object("build_after_destroy", "use-after-destroy", &["ibv_qp 0x"]),
    object("start_poll_after_destroy", "use-after-destroy", &["ibv_cq 0x"]),
    object("notify_after_destroy", "use-after-destroy", &["ibv_cq 0x"]),
    // The parent exits with 0.
    Mistake { code: Some(0), ..request("use_after_fork", "use-after-fork", &["ibv_qp 0x"]) },
    object("memlock_limit", "memlock-limit", &["131072 bytes", "65536 bytes"]),
];

/// The programs of a test, and where they write their findings.
struct Place {
    folder: PathBuf,
    json: PathBuf,
}

/// How a program ended.
struct Ended {
    code: Option<i32>,
    printed: String,
    report: String,
    findings: Vec<Value>,
}

impl Place {
    fn new(test: &str) -> Self {
        let folder = common::scratch(&format!("check-{test}"));
        Self { json: folder.join("findings.json"), folder }
    }

    fn compile(&self, source: &str) -> PathBuf {
        self.compile_with(source, &[])
    }

    /// Compiles a program. `more` are further sources, libraries and options.
    fn compile_with(&self, source: &str, more: &[&str]) -> PathBuf {
        let program = self.folder.join(source.trim_end_matches(".c"));
        let path = format!("{SOURCES}/{source}");
        let arguments = ["-g", "-O0", "-fno-omit-frame-pointer", &path, "-libverbs", "-pthread"];
        common::compile(&program, &[&arguments, more].concat());
        program
    }

    /// Runs a program under `ironwarp run --check`.
    fn run(&self, program: &Path, options: &[&str], arguments: &[&str]) -> Ended {
        self.run_with("--check", program, options, arguments)
    }

    /// Runs a program under `ironwarp run`. `check` is the option.
    fn run_with(&self, check: &str, program: &Path, options: &[&str], arguments: &[&str]) -> Ended {
        // A program that is no longer run by root writes to it as well.
        fs::write(&self.json, "").unwrap();
        fs::set_permissions(&self.json, fs::Permissions::from_mode(0o666)).unwrap();
        let mut command = Command::new("timeout");
        command.arg("60").arg(common::libraries().join("../../bin/ironwarp"));
        command.args(["run", check, "--check-json"]).arg(&self.json).args(options);
        let output = command.arg("--").arg(program).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let lines = fs::read_to_string(&self.json).unwrap();
        Ended {
            code: output.status.code(),
            printed: text(&output.stdout),
            report: text(&output.stderr),
            findings: lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        }
    }

    fn remove(self) {
        fs::remove_dir_all(self.folder).unwrap();
    }
}

impl Ended {
    /// Returns the kinds of the findings.
    fn kinds(&self) -> Vec<&str> {
        self.findings.iter().map(|finding| finding["kind"].as_str().unwrap()).collect()
    }

    /// Checks that there is nothing to report.
    fn assert_clean(&self, context: &str) {
        let Self { code, printed, report, .. } = self;
        assert_eq!(*code, Some(0), "{context}: {printed}{report}");
        assert_eq!(self.kinds(), [""; 0], "{context}: {report}");
        let summaries = report.lines().filter(|line| line.contains("== ironwarp check: "));
        let clean = "0 findings, 0 suppressed, 0 remarks; 0 more of the same";
        assert!(summaries.clone().count() > 0, "{context}: {report}");
        summaries.for_each(|line| assert!(line.ends_with(clean), "{context}: {report}"));
        assert!(report.lines().all(|line| !line.starts_with("==") || line.ends_with(clean)), "{report}");
    }

    /// Returns a part of a text with the queue pairs of the program.
    fn fill_in(&self, part: &str, variant: &[&str]) -> String {
        let numbers: Vec<&str> = self.printed.split_whitespace().collect();
        let (a, b) = match numbers[..] {
            ["a", a, "b", b, ..] => (a, b),
            _ => ("none", "none"),
        };
        let receives = if variant.contains(&"shared") { "shared receive queue " } else { "queue pair {b}" };
        part.replace("{receives}", receives).replace("{a}", a).replace("{b}", b)
    }

    /// Checks that the standard error has all that a line of JSON has.
    fn assert_printed(&self, finding: &Value) {
        let process = finding["process"].as_u64().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let (kind, remark) = match text(&finding["severity"]).as_str() {
            "remark" => (text(&finding["kind"]), "remark "),
            severity => (text(&finding["kind"]), if severity == "finding" { "" } else { "?" }),
        };
        let head =
            format!("=={process}== {remark}{}: {kind}: {}\n", finding["number"], text(&finding["text"]));
        let (_, rest) = self.report.split_once(&head).unwrap_or_else(|| panic!("{head}{}", self.report));
        let mut lines = rest.lines();
        for call in finding["calls"].as_array().unwrap() {
            assert_eq!(lines.next().unwrap(), format!("=={process}==    {}", text(&call["what"])));
            for (at, frame) in call["stack"].as_array().unwrap().iter().enumerate() {
                let word = if at == 0 { "at" } else { "by" };
                let name = frame["function"].as_str().or(frame["address"].as_str()).unwrap();
                let place = match (frame["file"].as_str(), frame["line"].as_u64()) {
                    (Some(file), Some(line)) => format!(" ({}:{line})", file.rsplit('/').next().unwrap()),
                    _ => {
                        frame["object"].as_str().map_or_else(String::new, |object| format!(" (in {object})"))
                    }
                };
                assert_eq!(lines.next().unwrap(), format!("=={process}==       {word} {name}{place}"));
            }
        }
    }
}

/// Returns the number of the line of `mistakes.c` that makes the mistake.
fn line_of(name: &str) -> u64 {
    let marks = MISTAKES.lines().enumerate().filter(|(_, line)| line.ends_with(&format!("/* {name} */")));
    let [(line, _)] = marks.collect::<Vec<_>>()[..] else { panic!("no line, or several, for {name}") };
    line as u64 + 1
}

/// Returns whether findings of this kind are remarks, as the list of kinds says.
fn is_remark(kind: &str) -> bool {
    let line = KINDS.lines().find(|line| line.contains(&format!("= \"{kind}\" "))).unwrap();
    line.ends_with("Remark,")
}

/// Checks one mistake, and the program without it.
fn check(name: &str) {
    let mistake = ALL.iter().find(|mistake| mistake.name == name).unwrap();
    let place = Place::new(name);
    let program = place.compile("mistakes.c");
    let variants = [&[], EXTENDED];
    for variant in &variants[..if mistake.in_requests { 2 } else { 1 }] {
        let context = format!("{name} {variant:?}");
        place.run(&program, &["--poison"], &[&[name, "right"], *variant].concat()).assert_clean(&context);
        let ended = place.run(&program, &["--poison"], &[&[name, "wrong"], *variant].concat());
        check_report(mistake, variant, &ended, &format!("{context}: {}{}", ended.printed, ended.report));
    }
    place.remove();
}

/// Checks the report of a mistake.
fn check_report(mistake: &Mistake, variant: &[&str], ended: &Ended, context: &str) {
    let Mistake { name, kind, .. } = mistake;
    let remark = is_remark(kind);
    assert_eq!(ended.code, Some(mistake.code.unwrap_or(if remark { 0 } else { 99 })), "{context}");
    let mut kinds = ended.kinds();
    let at = kinds.iter().position(|it| it == kind).unwrap_or_else(|| panic!("{context}"));
    let before =
        ended.findings[..at].iter().filter(|other| other["severity"] == ended.findings[at]["severity"]);
    let finding = &ended.findings[at];
    kinds.remove(at);
    assert_eq!(kinds, mistake.also, "{context}");
    assert_eq!(finding["severity"], if remark { "remark" } else { "finding" }, "{context}");
    assert_eq!(finding["number"], before.count() + 1, "{context}");
    let text = finding["text"].as_str().unwrap();
    for part in mistake.text {
        let part = ended.fill_in(part, variant);
        assert!(text.contains(&part), "`{part}` is missing: {context}");
    }
    let stack = finding["calls"][0]["stack"].as_array().unwrap();
    let function = format!("mistake_{name}");
    let frame = stack.iter().find(|frame| frame["function"] == *function);
    let frame = frame.unwrap_or_else(|| panic!("no {function}: {context}"));
    assert!(frame["file"].as_str().unwrap().ends_with("/mistakes.c"), "{context}");
    assert_eq!(frame["line"], line_of(name), "{context}");
    ended.findings.iter().for_each(|finding| ended.assert_printed(finding));
    let plural = |count: usize, word| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let remarks = mistake.also.len() + usize::from(remark);
    let summary = format!(
        "=={}== ironwarp check: {}, 0 suppressed, {}; 0 more of the same",
        finding["process"],
        plural(usize::from(!remark), "finding"),
        plural(remarks, "remark")
    );
    assert!(ended.report.lines().any(|line| line == summary), "{summary}\n{context}");
}

/// Defines a test for each mistake.
macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

tests! {
    send_buffer_changed unsignaled_buffer_changed changed_after_bind
    receive_buffer_read_early read_sink_read_early receive_buffer_written
    region_deregistered_in_use datagram_buffer_deregistered region_deregistered_before_message
    memory_unmapped_in_use memory_freed_in_use receive_buffer_freed_in_use large_block_freed_in_use
    memory_reallocated_in_use
    stale_registration use_after_free large_block_used_after_free
    misaligned_atomic missing_rights missing_local_rights
    bad_memory_key bad_memory_range key_of_another_domain bad_remote_range bad_remote_key
    cq_may_overrun unpolled_completion waited_for_receive send_queue_unsignaled unsignaled_for_ever
    unacknowledged_events
    post_in_error_state post_before_connect
    leak destroy_busy destroy_with_requests destroy_before_completion use_after_destroy post_after_destroy poll_after_destroy
    build_after_destroy start_poll_after_destroy notify_after_destroy
    use_after_fork memlock_limit
}

/// Defines a test for each program of `allowed.c`, with its variants.
macro_rules! allowed {
    ($($name:ident: $($variant:expr),*;)*) => {
        $(
            #[test]
            fn $name() {
                let place = Place::new(stringify!($name));
                let program = place.compile("allowed.c");
                for variant in [$(&$variant[..]),*] {
                    for options in [&["--poison"][..], &[]] {
                        let context = format!("{} {variant:?} {options:?}", stringify!($name));
                        place.run(&program, options, &[&[stringify!($name)], variant].concat()).assert_clean(&context);
                    }
                }
                place.remove();
            }
        )*
    };
}

allowed! {
    reset_discards_receives: [], ["extended"];
    reset_after_failure: [], EXTENDED;
    stopped_send_queue: [], ["extended"];
    several_pollers: [], ["extended"];
    fenced_send: [], ["extended"];
    unsignaled_datagram: [], ["extended"];
    one_of_several_handles: [];
    former_completion_queue: ["shared"];
    shared_queue_alone: [];
    mostly_unsignaled: [], ["extended"];
    flushed_requests: [], ["extended"];
}

#[test]
fn there_is_a_test_for_each_kind() {
    let listed: Vec<&str> = ALL.iter().map(|mistake| mistake.name).collect();
    assert_eq!(listed, TESTED);
    let kinds = KINDS.lines().filter_map(|line| {
        let (name, severity) = line.split_once(" = \"")?.1.split_once("\" ")?;
        matches!(severity, "Finding," | "Remark,").then_some(name)
    });
    let tested = ALL.iter().map(|mistake| mistake.kind).chain(ELSEWHERE);
    assert_eq!(tested.collect::<BTreeSet<_>>(), kinds.collect::<BTreeSet<_>>());
}

/// efa has neither reliable connections nor a number of outstanding Reads, mlx5 has both.
#[test]
fn requests_beyond_the_limits_of_a_device_are_found() {
    let place = Place::new("limits");
    let program = place.compile("mistakes.c");
    let arguments = ["send_buffer_changed", "right"];
    place.run_with("--check=mlx5", &program, &[], &arguments).assert_clean("mlx5");
    let ended = place.run_with("--check=efa", &program, &[], &arguments);
    assert_eq!(ended.code, Some(99), "{}", ended.report);
    assert!(ended.kinds().iter().all(|kind| *kind == "device-limit"), "{}", ended.report);
    let text = ended.findings[0]["text"].as_str().unwrap();
    assert!(text.starts_with("efa does not support qp_type IBV_QPT_RC"), "{text}");
    ended.findings.iter().for_each(|finding| ended.assert_printed(finding));
    place.remove();
}

/// Data is the same as without the checker, also in the parts of buffers that nothing was received into.
#[test]
fn programs_get_the_same_data() {
    let place = Place::new("data");
    let program = place.compile("data.c");
    for variant in ALL_VARIANTS {
        for poison in [&["--poison"][..], &[]] {
            place.run(&program, poison, variant).assert_clean(&format!("{variant:?} {poison:?}"));
        }
    }
    place.remove();
}

/// A child does not wait for locks that other threads of its parent had.
#[test]
fn children_can_be_forked_at_any_time() {
    let place = Place::new("forks");
    let ended = place.run(&place.compile("forks.c"), &[], &[]);
    assert_eq!((ended.code, ended.kinds()), (Some(0), vec!["waited-for-receive"]), "{}", ended.report);
    place.remove();
}

/// Calls that look like mistakes, but leave registered memory in place.
#[test]
fn memory_that_stays_in_place_is_not_reported() {
    let place = Place::new("memory");
    let program = place.compile("memory.c");
    for test in ["failed_calls", "reallocated_in_place", "allocated_again", "on_demand"] {
        place.run(&program, &[], &[test]).assert_clean(test);
    }
    place.remove();
}

/// With another allocator than the C library's, memory from malloc is not watched, but all else is.
#[test]
fn another_allocator_is_left_alone() {
    let place = Place::new("allocator");
    let library = place.folder.join("liballocator.so");
    let source = format!("{SOURCES}/allocator.c");
    common::compile(&library, &["-g", "-O1", "-fPIC", "-shared", &source, "-pthread"]);
    let linked = place.compile_with("mistakes.c", &[library.to_str().unwrap()]);
    check_allocator(&place, &linked);
    let inside = place.compile_with("mistakes.c", &[&source]);
    check_allocator(&place, &inside);
    place.remove();
}

fn check_allocator(place: &Place, program: &Path) {
    for name in ["use_after_free", "large_block_freed_in_use", "memory_reallocated_in_use"] {
        place.run(program, &[], &[name, "right"]).assert_clean(name);
        place.run(program, &[], &[name, "wrong"]).assert_clean(name);
    }
    let ended = place.run(program, &[], &["send_buffer_changed", "wrong"]);
    assert_eq!((ended.code, ended.kinds()), (Some(99), vec!["send-buffer-changed"]), "{}", ended.report);
}

/// Mistakes of requests are found with either kind of calls and receive queue.
#[test]
fn calls_and_receive_queues_are_independent() {
    let place = Place::new("variants");
    let program = place.compile("mistakes.c");
    for name in ["receive_buffer_read_early", "receive_buffer_written", "region_deregistered_in_use"] {
        let mistake = ALL.iter().find(|mistake| mistake.name == name).unwrap();
        for variant in [&["extended"], &["shared"]] {
            let ended = place.run(&program, &["--poison"], &[&[name, "wrong"], &variant[..]].concat());
            check_report(mistake, variant, &ended, &format!("{variant:?}: {}", ended.report));
        }
    }
    place.remove();
}

#[test]
fn an_exit_code_of_the_program_is_kept() {
    let place = Place::new("exit");
    let program = place.compile("mistakes.c");
    let ended = place.run(&program, &["--poison"], &["send_buffer_changed", "wrong", "exit=3"]);
    assert_eq!((ended.code, ended.kinds()), (Some(3), vec!["send-buffer-changed"]), "{}", ended.report);
    let ended = place.run(&program, &["--poison"], &["send_buffer_changed", "right", "exit=3"]);
    assert_eq!((ended.code, ended.kinds()), (Some(3), vec![]), "{}", ended.report);
    place.remove();
}

#[test]
fn exit_handlers_run_and_may_post() {
    let place = Place::new("exit-handlers");
    let program = place.compile("exit.c");
    let right = place.run(&program, &[], &["right"]);
    right.assert_clean("right");
    let wrong = place.run(&program, &[], &["wrong"]);
    assert_eq!((wrong.code, wrong.kinds()), (Some(99), vec!["send-buffer-changed"]), "{}", wrong.report);
    for ended in [right, wrong] {
        let all = "registered last\nregistered first\ndestructor\n";
        assert!(ended.printed.ends_with(all), "{}", ended.printed);
    }
    place.remove();
}

#[test]
fn a_mistake_that_is_repeated_is_counted() {
    let place = Place::new("repeated");
    let program = place.compile("mistakes.c");
    let ended = place.run(&program, &["--poison"], &["repeated", "wrong"]);
    assert_eq!((ended.code, ended.kinds()), (Some(99), vec!["send-buffer-changed"]), "{}", ended.report);
    let summary = "1 finding, 0 suppressed, 0 remarks; 2 more of the same\n";
    assert!(ended.report.ends_with(summary), "{}", ended.report);
    place.run(&program, &["--poison"], &["repeated", "right"]).assert_clean("right");
    place.remove();
}

#[test]
fn suppressed_findings_are_counted() {
    let place = Place::new("suppressed");
    let program = place.compile("mistakes.c");
    let file = place.folder.join("check.supp");
    let run = |suppression: &str| {
        fs::write(&file, suppression).unwrap();
        let options = ["--suppressions", file.to_str().unwrap()];
        place.run(&program, &options, &["send_buffer_changed", "wrong"])
    };
    let all = "{\n   any\n   ironwarp:send-buffer-changed\n}\n";
    let one = "{\n   one\n   ironwarp:send-*\n   fun:ibv_post_send\n   ...\n   fun:mistake_send_buffer_changed\n   obj:*/mistakes\n}\n";
    for text in [all, one] {
        let ended = run(text);
        assert_eq!((ended.code, ended.kinds()), (Some(0), vec![]), "{}", ended.report);
        let summary = "ironwarp check: 0 findings, 1 suppressed, 0 remarks; 0 more of the same\n";
        assert!(ended.report.ends_with(summary), "{}", ended.report);
        assert_eq!(ended.report.lines().count(), 1, "{}", ended.report);
    }
    for text in [
        "{\n   kind\n   ironwarp:leak\n}\n",
        "{\n   function\n   ironwarp:send-buffer-changed\n   fun:main\n}\n",
        "{\n   invalid\n   leak\n}\n",
    ] {
        let ended = run(text);
        assert_eq!((ended.code, ended.kinds()), (Some(99), vec!["send-buffer-changed"]), "{}", ended.report);
        let refused = format!("ironwarp: {}:3: expected ", file.display());
        assert_eq!(ended.report.contains(&refused), text.contains("invalid"), "{}", ended.report);
    }
    place.remove();
}
