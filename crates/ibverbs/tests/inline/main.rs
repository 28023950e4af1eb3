//! Inline data (requirement X5) of C programs: posted without an allocation for each request.

#[path = "../common/mod.rs"]
mod common;

#[test]
fn inline_data_of_any_allowed_length_is_posted_without_an_allocation() {
    let scratch = common::scratch("inline");
    let program = scratch.join("inline");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/inline/inline.c");
    common::compile(&program, &[source, "-libverbs"]);
    for persona in ["roce", "iwarp"] {
        let output = common::with_dropin(&program).env("IRONWARP_PERSONA", persona).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{persona}: {}\n{printed}{output:?}", output.status);
    }
    std::fs::remove_dir_all(scratch).unwrap();
}
