//! Tests of the end of a process: connections are closed properly, even if other threads destroy them or fork
//! meanwhile.

#[path = "../common/mod.rs"]
mod common;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exit/");

/// Compiles a C program of this directory with its libraries, runs it with the drop-in, and returns its output. The
/// program must succeed within a minute.
fn run(name: &str, libraries: &[&str]) -> String {
    let scratch = common::scratch(name);
    let program = scratch.join(name);
    let mut arguments = vec![format!("{SOURCES}{name}.c"), "-libverbs".to_owned()];
    for library in libraries {
        let file = scratch.join(format!("lib{library}.so"));
        common::compile(&file, &["-shared", "-fPIC", &format!("{SOURCES}{library}.c")]);
        arguments.push(file.to_string_lossy().into_owned());
    }
    common::compile(&program, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let output = common::run(&program);
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}: {output_text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::remove_dir_all(scratch).expect("a folder of its own");
    output_text
}

#[test]
fn queue_pairs_may_be_destroyed_while_exit_closes_their_connections() {
    let output_text = run("exits", &[]);
    assert!(
        output_text.ends_with("destroyed\n"),
        "exit() ended before the queue pairs were destroyed: {output_text}"
    );
}

#[test]
fn a_thread_may_fork_while_another_exits() {
    let output_text = run("forks", &["last"]);
    assert!(output_text.ends_with("forked\n"), "exit() ended before the fork: {output_text}");
}

#[test]
fn an_exit_handler_may_make_calls_that_fail_and_fork() {
    let output_text = run("handlers", &[]);
    assert!(output_text.ends_with("handled\n"), "the handler did not end: {output_text}");
}
