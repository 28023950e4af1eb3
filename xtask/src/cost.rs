//! The cost of a job: wall time, and the CPU time of this process and the children it has waited for.
//!
//! Wall time is how long a developer waits. CPU time does not depend on what else runs on the machine.

use std::fmt;
use std::fs;
use std::iter::Sum;
use std::time::{Duration, Instant};

/// `man 5 proc_pid_stat`: times are in units of `sysconf(_SC_CLK_TCK)`, which Linux fixes at 100 for user space.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
}

/// Measures the cost from when it is created.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    cpu: Duration,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), cpu: cpu_time() }
    }

    pub(crate) fn read(&self) -> Cost {
        Cost { wall: self.start.elapsed(), cpu: cpu_time().saturating_sub(self.cpu) }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.1} s{:>10.1} s CPU", self.wall.as_secs_f64(), self.cpu.as_secs_f64())
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |sum, cost| Self { wall: sum.wall + cost.wall, cpu: sum.cpu + cost.cpu })
    }
}

/// Zero if there is no procfs: a job must not fail because its cost is unknown.
fn cpu_time() -> Duration {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| parse(&stat)).unwrap_or_default()
}

/// Reads a `stat` file of a process: the sum of utime, stime, cutime and cstime, the 14th to the 17th field. The second
/// field is the name of the program in parentheses, which may contain anything.
pub(crate) fn parse(stat: &str) -> Option<Duration> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    let times: Vec<u64> =
        behind_name.split(' ').skip(11).take(4).map(|field| field.parse().ok()).collect::<Option<_>>()?;
    (times.len() == 4).then(|| Duration::from_millis(times.iter().sum::<u64>() * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::{command, run};

    #[test]
    fn the_four_times_are_added_up() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194304 10 20 30 40 100 20 3000 400 20 0 1 0 99\n";
        assert_eq!(parse(stat), Some(Duration::from_millis(35_200)));
        assert_eq!(parse("7 (short) S 1 2 3"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_work_of_a_child_counts() {
        let meter = Meter::start();
        run(&mut command("sh", &["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"])).unwrap();
        let cost = meter.read();
        assert!(cost.cpu > Duration::from_millis(20), "{cost:?}");
    }
}
