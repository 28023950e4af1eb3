//! `ironwarp explain`: what a number or a name that a program printed means here. `status.rs` has the completion statuses,
//! `errno.rs` the errors of calls, `vendor.rs` what is in `vendor_err`.

mod errno;
mod status;
mod vendor;

use crate::say::{self, Failure};
use clap::Args;
use ironwarp::Culprit;

const MORE: &str = "\
Examples:
  ironwarp explain 10                      a number: all that it may stand for
  ironwarp explain IBV_WC_REM_ACCESS_ERR   the status of a completion, by its name
  ironwarp explain remote access error     the same, by the words that programs print
  ironwarp explain ECONNREFUSED            the error of a call; -111 and 111 are the same
  ironwarp explain 0x49070102              the vendor_err of a completion";

/// Explain the status of a completion, an errno, or a vendor_err
#[derive(Debug, Args)]
#[command(after_help = MORE, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// A number, a name, or the words for it
    #[arg(value_name = "CODE", required = true, num_args = 1.., allow_hyphen_values = true)]
    code: Vec<String>,
}

/// What one code means.
#[derive(Debug, PartialEq, Eq)]
struct Explanation {
    /// The code, what kind of code it is, and the usual words for it.
    title: String,
    /// What happened.
    what: String,
    whose: &'static str,
    /// What usually leads to it.
    causes: &'static [&'static str],
    /// Where to look next.
    look: &'static [&'static str],
}

/// Runs the command. False: nobody knows the code.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let code = arguments.code.join(" ");
    let found = explain(code.trim());
    for (at, explanation) in found.iter().enumerate() {
        let gap = if at == 0 { "" } else { "\n" };
        say::line(format_args!("{gap}{}\n{}", say::bold(&explanation.title), explanation.body()))?;
    }
    match (found.is_empty(), number(code.trim())) {
        (false, _) => Ok(true),
        (true, Some(_)) => Err(format!(
            "`{code}` is no completion status, no errno that is known here, and no vendor_err of Ironwarp's"
        )
        .into()),
        (true, None) => Err(format!(
            "`{code}` is no code that is known here; `ironwarp explain --help` shows what they look like"
        )
        .into()),
    }
}

/// All that a code may stand for.
fn explain(code: &str) -> Vec<Explanation> {
    match number(code) {
        Some(number) => {
            let status = u32::try_from(number).ok().and_then(status::by_number);
            let errno = i32::try_from(number.unsigned_abs()).ok().and_then(errno::by_number);
            let vendor = u32::try_from(number).ok().and_then(vendor::by_number);
            status.into_iter().chain(errno).chain(vendor).collect()
        }
        None => status::by_name(code).into_iter().chain(errno::by_name(code)).collect(),
    }
}

/// A number, with a sign or in hexadecimal.
fn number(code: &str) -> Option<i64> {
    let hexadecimal = code.strip_prefix("0x").or_else(|| code.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => u32::from_str_radix(digits, 16).ok().map(i64::from),
        None => code.parse().ok(),
    }
}

/// The words of a text, whatever is between them and however they are written.
fn words(text: &str) -> String {
    let letters = text.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    letters.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Explanation {
    fn body(&self) -> String {
        let mut body = format!("  what happened   {}\n  whose doing     {}\n", self.what, self.whose);
        for (label, lines) in [("typical causes", self.causes), ("look at", self.look)] {
            for (at, line) in lines.iter().enumerate() {
                let label = if at == 0 { label } else { "" };
                body += &format!("  {label:<15} - {line}\n");
            }
        }
        body.trim_end().to_owned()
    }
}

const fn whose(culprit: Culprit) -> &'static str {
    match culprit {
        Culprit::Program => "this program's",
        Culprit::Peer => "the program's at the other end",
        Culprit::Adapter => "Ironwarp's",
        Culprit::Network => "the network's, or the other end is gone",
        _ => "nobody's: so it ends when all is well",
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
    fn a_number_that_stands_for_two_things_is_explained_twice() {
        let both = ["IBV_WC_RETRY_EXC_ERR (12), completion status", "ENOMEM (12), error of a call"];
        assert_eq!(titles("12"), both);
        assert_eq!(titles("-12"), both[1..]);
    }

    #[test]
    fn a_vendor_err_is_found_in_both_writings() {
        for code in ["0x49070102", "0X49070102", "1225195778"] {
            assert_eq!(titles(code), ["0x49070102, vendor_err"], "{code}");
        }
    }

    #[test]
    fn others_are_not() {
        for code in ["", "99999", "0x81", "IBV_WC_", "no such thing", "0x100000000", "-", "--12"] {
            assert_eq!(titles(code), [""; 0], "{code}");
        }
    }

    #[test]
    fn everything_is_said() {
        let numbers = (-200..200).map(|number: i32| number.to_string());
        let vendor = (1..=20).map(|kind| format!("{:#x}", 0x4900_0000 | kind << 16));
        let with_detail = (1..=7).map(|kind| format!("{:#x}", 0x4900_0001 | kind << 16));
        let all: Vec<_> = numbers.chain(vendor).chain(with_detail).flat_map(|code| explain(&code)).collect();
        assert!(all.len() > 100, "{}", all.len());
        for explanation in all {
            let Explanation { title, what, whose, causes, look } = &explanation;
            assert!(!title.is_empty() && !whose.is_empty() && what.len() > 10, "{explanation:?}");
            assert!(!what.ends_with('.') && !what.contains('\n'), "{explanation:?}");
            let lines = causes.iter().chain(*look);
            assert!(lines.clone().all(|line| line.len() >= 10 && !line.ends_with('.')), "{explanation:?}");
            assert!(!look.is_empty() || causes.is_empty(), "{explanation:?}");
        }
    }
}
