//! Fault plans: which faults to inject, and how often. A plan is written as one line of text, for an environment
//! variable and for failure reports.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A fault plan: the probability of each fault. Written as a list separated by commas, in any order:
///
/// | entry | effect |
/// |---|---|
/// | `split=0.2` | one in five sends or receives, on average, passes on only its first bytes |
/// | `delay=50us..2ms@0.05` | one direction is delayed in the middle of a transfer |
/// | `stall=100ms@0.001` | both directions are delayed |
/// | `cut@0.0001` | the connection is reset in the middle of a transfer |
/// | `no-receive@0.01` | a posted receive is withheld for about a millisecond |
/// | `no-register@0.01` | a registration of memory fails |
///
/// A probability is per call that transfers bytes, per receive or per registration, and has at most six decimals.
/// Times are whole numbers of `ns`, `us`, `ms` or `s`, or ranges of such times. The default, which prints as `none`,
/// injects no fault.
///
/// ```
/// # use ironwarp_rnic::fault::FaultPlan;
/// let plan: FaultPlan = "cut@0.0001, delay=50us..2ms@0.05".parse()?;
/// assert_eq!(plan.to_string(), "delay=50us..2ms@0.05,cut@0.0001");
/// let wrong = "sever@0.1".parse::<FaultPlan>().unwrap_err();
/// assert!(wrong.to_string().starts_with("unknown fault `sever`, expected one of split=CHANCE, "));
/// # Ok::<(), ironwarp_rnic::fault::BadPlan>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    pub(super) split: Chance,
    pub(super) delay: RandomDelay,
    pub(super) stall: RandomDelay,
    pub(super) cut: Chance,
    pub(super) no_receive: Chance,
    pub(super) no_register: Chance,
}

/// A probability, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chance(u32);

/// A delay: the range of its duration, and its probability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RandomDelay {
    pub(super) min: Duration,
    pub(super) max: Duration,
    pub(super) chance: Chance,
}

/// An error in the text of a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadPlan {
    /// The fault is unknown.
    #[error("unknown fault `{0}`, expected one of {FORMS}")]
    Word(String),
    /// The entry lacks its value, or has one too many.
    #[error("invalid fault `{0}`, expected one of {FORMS}")]
    Form(String),
    /// The probability is invalid.
    #[error("invalid probability `{0}`: must be above 0, at most 1, with at most six decimals, as in 0.05")]
    Chance(String),
    /// The time is invalid.
    #[error("invalid time `{0}`: must be a whole number followed by ns, us, ms or s, as in 50us")]
    Time(String),
    /// The upper bound of a range is below its lower bound.
    #[error("empty range `{0}`: the lower bound must come first, as in 50us..2ms")]
    Range(String),
    /// A fault is named twice.
    #[error("duplicate fault `{0}`")]
    Twice(String),
}

/// The forms of all entries, for error messages.
const FORMS: &str = "split=CHANCE, delay=TIME@CHANCE, stall=TIME@CHANCE, cut@CHANCE, no-receive@CHANCE and \
    no-register@CHANCE, where TIME may be a range TIME..TIME";

/// The text of an empty plan.
const NONE: &str = "none";

/// Units of time in nanoseconds. `s` must be last, because the other units end with `s`, too.
const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl Chance {
    /// The probability 0.
    pub const NEVER: Self = Self(0);
    /// The probability 1.
    pub const ALWAYS: Self = Self(1_000_000);

    /// Creates a probability of `times` in a million, or [`ALWAYS`](Self::ALWAYS) if `times` exceeds a million.
    pub const fn in_a_million(times: u32) -> Self {
        if times > Self::ALWAYS.0 { Self::ALWAYS } else { Self(times) }
    }

    /// Returns the probability in millionths.
    pub(super) const fn millionths(self) -> u32 {
        self.0
    }
}

impl FromStr for FaultPlan {
    type Err = BadPlan;

    fn from_str(text: &str) -> Result<Self, BadPlan> {
        let mut plan = Self::default();
        if !matches!(text.trim(), "" | NONE) {
            text.split(',').try_for_each(|entry| plan.parse_entry(entry.trim()))?;
        }
        Ok(plan)
    }
}

impl FaultPlan {
    /// Parses one entry of the list, and sets the fault that it names.
    fn parse_entry(&mut self, entry: &str) -> Result<(), BadPlan> {
        let (name, rest) = entry.split_at(entry.find(['=', '@']).unwrap_or(entry.len()));
        match name {
            "split" => set_once(&mut self.split, name, parse_chance(strip_sign(entry, rest, '=')?)?),
            "cut" => set_once(&mut self.cut, name, parse_chance(strip_sign(entry, rest, '@')?)?),
            "no-receive" => {
                set_once(&mut self.no_receive, name, parse_chance(strip_sign(entry, rest, '@')?)?)
            }
            "no-register" => {
                set_once(&mut self.no_register, name, parse_chance(strip_sign(entry, rest, '@')?)?)
            }
            "delay" => set_once(&mut self.delay, name, parse_delay(entry, strip_sign(entry, rest, '=')?)?),
            "stall" => set_once(&mut self.stall, name, parse_delay(entry, strip_sign(entry, rest, '=')?)?),
            _ => Err(BadPlan::Word(name.to_owned())),
        }
    }
}

/// Sets the value of a fault, unless it was set before. A parsed value is never the default, because its probability
/// is above 0.
fn set_once<T: Default + PartialEq>(place: &mut T, name: &str, value: T) -> Result<(), BadPlan> {
    if *place != T::default() {
        return Err(BadPlan::Twice(name.to_owned()));
    }
    *place = value;
    Ok(())
}

/// Returns the value of an entry: `rest` without the sign that it must start with.
fn strip_sign<'a>(entry: &str, rest: &'a str, sign: char) -> Result<&'a str, BadPlan> {
    rest.strip_prefix(sign).ok_or_else(|| BadPlan::Form(entry.to_owned()))
}

/// Parses `TIME@CHANCE` or `TIME..TIME@CHANCE`. `entry` is the whole entry, for errors.
fn parse_delay(entry: &str, text: &str) -> Result<RandomDelay, BadPlan> {
    let (times, chance) = text.split_once('@').ok_or_else(|| BadPlan::Form(entry.to_owned()))?;
    let (min, max) = times.split_once("..").unwrap_or((times, times));
    let delay = RandomDelay { min: parse_time(min)?, max: parse_time(max)?, chance: parse_chance(chance)? };
    if delay.max < delay.min { Err(BadPlan::Range(times.to_owned())) } else { Ok(delay) }
}

/// Parses a probability, such as `0.05`.
fn parse_chance(text: &str) -> Result<Chance, BadPlan> {
    let (ones, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let parsed = || {
        let millionths = format!("{decimals:0<6}");
        let exact = !ones.is_empty() && !decimals.is_empty() && millionths.len() == 6;
        parse_digits(&format!("{ones}{millionths}")).filter(|value| exact && (1..=1_000_000).contains(value))
    };
    let value = parsed().and_then(|value| u32::try_from(value).ok());
    value.map(Chance).ok_or_else(|| BadPlan::Chance(text.to_owned()))
}

/// Parses a time, such as `50us`.
fn parse_time(text: &str) -> Result<Duration, BadPlan> {
    let parsed = || {
        let (digits, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
        parse_digits(digits)?.checked_mul(*unit)
    };
    parsed().map(Duration::from_nanos).ok_or_else(|| BadPlan::Time(text.to_owned()))
}

/// Parses a number that consists of digits only: the standard parser would accept a sign.
fn parse_digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = [
            (self.split, format!("split={}", self.split)),
            (self.delay.chance, format!("delay={}", self.delay)),
            (self.stall.chance, format!("stall={}", self.stall)),
            (self.cut, format!("cut@{}", self.cut)),
            (self.no_receive, format!("no-receive@{}", self.no_receive)),
            (self.no_register, format!("no-register@{}", self.no_register)),
        ];
        let set = entries.into_iter().filter(|(chance, _)| *chance != Chance::NEVER);
        let texts: Vec<String> = set.map(|(_, text)| text).collect();
        f.write_str(if texts.is_empty() { NONE } else { "" })?;
        f.write_str(&texts.join(","))
    }
}

impl fmt::Display for RandomDelay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Time(self.min))?;
        if self.min != self.max {
            write!(f, "..{}", Time(self.max))?;
        }
        write!(f, "@{}", self.chance)
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{}.{:06}", self.0 / Self::ALWAYS.0, self.0 % Self::ALWAYS.0);
        f.write_str(digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// Prints a time as a whole number of the largest possible unit.
pub(super) struct Time(pub(super) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        let whole = |(_, unit): &&(&str, u64)| nanos.is_multiple_of(u128::from(*unit));
        let (name, unit) = UNITS.iter().rev().find(whole).unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", nanos / u128::from(*unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &str =
        "split=0.2,delay=50us..2ms@0.05,stall=100ms@0.001,cut@0.0001,no-receive@0.01,no-register@0.01";

    fn parse(text: &str) -> Result<FaultPlan, BadPlan> {
        text.parse()
    }

    #[test]
    fn every_word_is_read_and_printed_back() {
        let plan = parse(ALL).unwrap();
        let (min, max) = (Duration::from_micros(50), Duration::from_millis(2));
        assert_eq!(plan.split, Chance(200_000));
        assert_eq!(plan.delay, RandomDelay { min, max, chance: Chance(50_000) });
        let long = Duration::from_millis(100);
        assert_eq!(plan.stall, RandomDelay { min: long, max: long, chance: Chance(1000) });
        assert_eq!(
            (plan.cut, plan.no_receive, plan.no_register),
            (Chance(100), Chance(10_000), Chance(10_000))
        );
        assert_eq!(plan.to_string(), ALL);
        assert_eq!(parse(" cut@1 ,  split=1.0 ").unwrap().to_string(), "split=1,cut@1");
    }

    #[test]
    fn nothing_is_a_plan() {
        assert_eq!(parse(""), Ok(FaultPlan::default()));
        assert_eq!(parse(&FaultPlan::default().to_string()), Ok(FaultPlan::default()));
        assert_eq!(FaultPlan::default().to_string(), "none");
    }

    #[test]
    fn times_print_in_the_largest_unit_that_keeps_them_whole() {
        for text in ["1ns", "999ns", "1500us", "1s..90s", "0s..1ms"] {
            let text = format!("delay={text}@0.5");
            assert_eq!(parse(&text).unwrap().to_string(), text);
        }
        assert_eq!(parse("delay=3000ms@0.5").unwrap().to_string(), "delay=3s@0.5");
        assert_eq!(parse("delay=0ns@0.000001").unwrap().to_string(), "delay=0s@0.000001");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text = str::to_owned;
        for (wrong, why) in [
            ("sever@0.1", BadPlan::Word(text("sever"))),
            ("split=0.1,,cut@0.1", BadPlan::Word(text(""))),
            ("split", BadPlan::Form(text("split"))),
            ("split@0.1", BadPlan::Form(text("split@0.1"))),
            ("cut=0.1", BadPlan::Form(text("cut=0.1"))),
            ("no-receive", BadPlan::Form(text("no-receive"))),
            ("delay=1ms", BadPlan::Form(text("delay=1ms"))),
            ("stall@0.1", BadPlan::Form(text("stall@0.1"))),
            ("delay=2ms..1ms@0.1", BadPlan::Range(text("2ms..1ms"))),
            ("cut@0.1,split=0.1,cut@0.1", BadPlan::Twice(text("cut"))),
            ("stall=1s@0.1,stall=1s@0.1", BadPlan::Twice(text("stall"))),
        ] {
            assert_eq!(parse(wrong), Err(why));
        }
        for wrong in
            ["", "0", "0.0", "1.000001", "2", "-0.1", "+0.1", ".5", "1.", "0.0000001", "0.1.1", "half"]
        {
            assert_eq!(parse(&format!("cut@{wrong}")), Err(BadPlan::Chance(text(wrong))));
        }
        for wrong in ["", "1", "ms", "1.5ms", "-1ms", "1m", "18446744073709551616ns", "18446744074s"] {
            assert_eq!(parse(&format!("delay=1ms..{wrong}@0.1")), Err(BadPlan::Time(text(wrong))));
        }
    }

    #[test]
    fn errors_say_what_is_allowed() {
        let message = |wrong| parse(wrong).unwrap_err().to_string();
        for wrong in ["sever@0.1", "cut"] {
            for name in ["split=", "delay=", "stall=", "cut@", "no-receive@", "no-register@", "TIME..TIME"] {
                assert!(message(wrong).contains(name), "{}", message(wrong));
            }
        }
        assert!(message("cut@2").contains("invalid probability `2`: must be above 0, at most 1"));
        assert!(
            message("delay=1m@0.1")
                .contains("invalid time `1m`: must be a whole number followed by ns, us, ms or s")
        );
    }
}
