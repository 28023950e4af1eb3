//! The end of a process: connections are closed properly, whatever other threads do meanwhile.

#[path = "../common/mod.rs"]
mod common;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exit/");

/// Runs a C program of this directory on the drop-in, and returns its output. It must succeed within a
/// minute.
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
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {said}{}", output.status, String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(scratch).expect("a folder of its own");
    said
}

#[test]
fn queue_pairs_may_be_destroyed_while_exit_closes_their_connections() {
    let said = run("exits", &[]);
    assert!(said.ends_with("destroyed\n"), "exit() ended before the queue pairs were destroyed: {said}");
}

#[test]
fn a_thread_may_fork_while_another_exits() {
    let said = run("forks", &["last"]);
    assert!(said.ends_with("forked\n"), "exit() ended before the fork: {said}");
}
