//! `ironwarp explain`: explains a code that a program printed. `status.rs` has the completion statuses, `errno.rs` the
//! errors of calls, and `vendor.rs` the values of `vendor_err`.

mod errno;
mod explanation;
mod status;
mod vendor;

use crate::say::{self, Failure};
use clap::Args;
use explanation::Explanation;

const MORE: &str = "\
Examples:
  ironwarp explain 10                      a number: everything it may mean
  ironwarp explain IBV_WC_REM_ACCESS_ERR   a completion status, by name
  ironwarp explain remote access error     a completion status, by the text that programs print
  ironwarp explain ECONNREFUSED            the error of a call, same as 111 or -111
  ironwarp explain 0x49070102              the vendor_err of a completion";

/// Explain a completion status, an errno or a vendor_err
#[derive(Debug, Args)]
#[command(after_help = MORE, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// A number, a name or a description
    #[arg(value_name = "CODE", required = true, num_args = 1.., allow_hyphen_values = true)]
    code: Vec<String>,
}

/// Runs the command. Fails if the code is unknown.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let code = arguments.code.join(" ");
    let found = explain(code.trim());
    for (at, explanation) in found.iter().enumerate() {
        let gap = if at == 0 { "" } else { "\n" };
        say::line(format_args!("{gap}{}\n{}", say::bold(&explanation.title), explanation.body()))?;
    }
    match (found.is_empty(), parse_number(code.trim())) {
        (false, _) => Ok(true),
        (true, Some(_)) => {
            Err(format!("`{code}` is not a completion status, a known errno or a vendor_err of Ironwarp")
                .into())
        }
        (true, None) => {
            Err(format!("unknown code `{code}`; see `ironwarp explain --help` for examples").into())
        }
    }
}

/// Returns everything that a code may mean.
fn explain(code: &str) -> Vec<Explanation> {
    match parse_number(code) {
        Some(number) => {
            let status = u32::try_from(number).ok().and_then(status::by_number);
            let errno = i32::try_from(number.unsigned_abs()).ok().and_then(errno::by_number);
            let vendor = u32::try_from(number).ok().and_then(vendor::by_number);
            status.into_iter().chain(errno).chain(vendor).collect()
        }
        None => status::by_name(code).into_iter().chain(errno::by_name(code)).collect(),
    }
}

/// Parses a decimal number with an optional sign, or a hexadecimal number with `0x`.
fn parse_number(code: &str) -> Option<i64> {
    let hexadecimal = code.strip_prefix("0x").or_else(|| code.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(i64::from),
        None => code.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(code: &str) -> Vec<String> {
        let kind = |title: &str| title.split(':').next().unwrap_or_default().to_owned();
        explain(code).iter().map(|it| kind(&it.title)).collect()
    }

    #[test]
    fn a_status_is_found_by_number_name_and_words() {
        for code in [
            "IBV_WC_REM_ACCESS_ERR",
            "ibv_wc_rem_access_err",
            "WC_REM_ACCESS_ERR",
            "REM_ACCESS_ERR",
            "remote access error",
            "Remote Access Error:",
        ] {
            assert_eq!(titles(code), ["IBV_WC_REM_ACCESS_ERR (10), completion status"], "{code}");
        }
    }

    #[test]
    fn an_errno_is_found_by_number_with_either_sign_name_and_words() {
        for code in ["111", "-111", "ECONNREFUSED", "econnrefused", "Connection refused", "0x6f"] {
            assert_eq!(titles(code), ["ECONNREFUSED (111), error of a call"], "{code}");
        }
    }

    #[test]
    fn an_ambiguous_number_is_explained_twice() {
        let both = ["IBV_WC_RETRY_EXC_ERR (12), completion status", "ENOMEM (12), error of a call"];
        assert_eq!(titles("12"), both);
        assert_eq!(titles("-12"), both[1..]);
    }

    #[test]
    fn a_vendor_err_is_found_in_hexadecimal_and_decimal() {
        for code in ["0x49070102", "0X49070102", "1225195778"] {
            assert_eq!(titles(code), ["0x49070102, vendor_err"], "{code}");
        }
    }

    #[test]
    fn unknown_codes_are_not_found() {
        for code in ["", "99999", "0x81", "IBV_WC_", "no such thing", "0x100000000", "-", "--12"] {
            assert_eq!(titles(code), [""; 0], "{code}");
        }
    }

    #[test]
    fn every_explanation_is_complete() {
        let numbers = (-200..200).map(|number: i32| number.to_string());
        let vendor = (1..=20).map(|kind| format!("{:#x}", 0x4900_0000 | kind << 16));
        let with_detail = (1..=7).map(|kind| format!("{:#x}", 0x4900_0001 | kind << 16));
        let all: Vec<_> = numbers.chain(vendor).chain(with_detail).flat_map(|code| explain(&code)).collect();
        assert!(all.len() > 100, "{}", all.len());
        for explanation in all {
            let Explanation { title, what, at_fault, causes, look } = &explanation;
            assert!(!title.is_empty() && !at_fault.is_empty() && what.len() > 10, "{explanation:?}");
            assert!(!what.ends_with('.') && !what.contains('\n'), "{explanation:?}");
            let lines = causes.iter().chain(*look);
            assert!(lines.clone().all(|line| line.len() >= 10 && !line.ends_with('.')), "{explanation:?}");
            assert!(!look.is_empty() || causes.is_empty(), "{explanation:?}");
        }
    }
}
