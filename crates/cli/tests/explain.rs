//! `ironwarp explain`, as a person calls it. What each code says is tested beside the tables.

mod common;

use common::{command, stderr, stdout};
use std::process::Output;

fn explain(code: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_ironwarp")).arg("explain").args(code).output().expect("runs")
}

#[test]
fn what_happened_whose_doing_it_is_and_where_to_look() {
    let output = explain(&["IBV_WC_RNR_RETRY_EXC_ERR"]);
    let expected = "\
IBV_WC_RNR_RETRY_EXC_ERR (13), completion status: RNR retry counter exceeded
  what happened   the peer posted no receive in time
  whose doing     the program's at the other end
  typical causes  - the program at the other end posts its receives too late, or too few of them
                  - `rnr_retry` is less than 7, which means for ever; or `min_rnr_timer` is short
  look at         - the number of receives posted there, before the connection is made and after each completion
";
    assert_eq!(stdout(&output), expected);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn words_need_no_quotes_and_negative_numbers_are_no_options() {
    assert_eq!(stdout(&explain(&["remote", "access", "error"])), stdout(&explain(&["REM_ACCESS_ERR"])));
    assert_eq!(stdout(&explain(&["-111"])), stdout(&explain(&["ECONNREFUSED"])));
    let both = stdout(&explain(&["12"]));
    let titles: Vec<_> = both.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
    assert_eq!(
        titles,
        [
            "IBV_WC_RETRY_EXC_ERR (12), completion status: transport retry counter exceeded",
            "ENOMEM (12), error of a call: Cannot allocate memory",
        ]
    );
}

#[test]
fn what_nobody_knows_is_told() {
    for (code, said) in [
        ("gone", "`gone` is no code that is known here; `ironwarp explain --help` shows what they look like"),
        (
            "0x81",
            "`0x81` is no completion status, no errno that is known here, and no vendor_err of Ironwarp's",
        ),
    ] {
        let output = explain(&[code]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(1), format!("ironwarp: {said}\n")));
    }
}

#[test]
fn help_is_help_and_no_code() {
    let help = explain(&["--help"]);
    assert!(stdout(&help).contains("Usage: ironwarp explain <CODE>..."), "{help:?}");
}
