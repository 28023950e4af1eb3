//! Runs `ironwarp explain`. The explanations are tested beside the tables.

mod common;

use common::{command, stderr, stdout};
use std::process::Output;

fn explain(code: &[&str]) -> Output {
    command(env!("CARGO_BIN_EXE_ironwarp")).arg("explain").args(code).output().expect("runs")
}

#[test]
fn an_explanation_has_causes_and_hints() {
    let output = explain(&["IBV_WC_RNR_RETRY_EXC_ERR"]);
    let expected = "\
IBV_WC_RNR_RETRY_EXC_ERR (13), completion status: RNR retry counter exceeded
  what happened   the peer did not post a receive in time
  at fault        the program at the other end
  typical causes  - the program at the other end posts receives too late, or too few of them
                  - `rnr_retry` is less than 7 (which means forever), or `min_rnr_timer` is short
  look at         - the number of receives posted there before the connection is established and after each completion
";
    assert_eq!(stdout(&output), expected);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn words_need_no_quotes_and_negative_numbers_are_not_options() {
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
fn unknown_codes_are_reported() {
    for (code, said) in [
        ("gone", "unknown code `gone`; see `ironwarp explain --help` for examples"),
        ("0x81", "`0x81` is not a completion status, a known errno or a vendor_err of Ironwarp"),
    ] {
        let output = explain(&[code]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(1), format!("ironwarp: {said}\n")));
    }
}

#[test]
fn help_is_not_a_code() {
    let help = explain(&["--help"]);
    assert!(stdout(&help).contains("Usage: ironwarp explain <CODE>..."), "{help:?}");
}
