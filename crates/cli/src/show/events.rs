//! `ironwarp show --events`: prints what the flight recorders of processes have recorded. A process that was killed has left
//! its record behind.

use crate::say::{self, Failure};
use ironwarp_engine::status::printable;
use ironwarp_recorder::{Dead, Event, Recording, for_each_running, of_process};
use ironwarp_rnic::recorded::Recorded;

/// Maximum number of events per process, unless all are shown.
const MAX_EVENTS: usize = 32;

/// Runs the command. Returns false if there is nothing to show.
pub(super) fn run(process: Option<i32>, all: bool) -> Result<bool, Failure> {
    let mut any = false;
    let print = |recording: Recording| {
        any = true;
        say::line(page(&recording, all))
    };
    let dead = match process.map(u32::try_from) {
        Some(Ok(process)) => of_process(process).try_for_each(print).map(|()| Vec::new())?,
        Some(Err(_)) => Vec::new(),
        None => for_each_running(print)?,
    };
    if !dead.is_empty() {
        let names: Vec<_> = dead.iter().map(name).collect();
        let programs = match dead.len() {
            1 => "1 program was killed or has crashed".to_owned(),
            number => format!("{number} programs were killed or have crashed"),
        };
        say::notice(format_args!("{programs}; specify a process to show its events: {}", names.join(", ")));
    }
    if !any {
        let why = match process {
            Some(process) => format!(
                "process {process} has left no events: it has exited normally, does not use the adapter, belongs to another user, or \
                 IRONWARP_RECORDER is off"
            ),
            None => "none of your running programs on this machine records events".to_owned(),
        };
        say::error(&*Failure::from(why));
    }
    Ok(any)
}

/// Returns the process and the program of a recording that is not printed.
fn name(dead: &Dead) -> String {
    format!("{} ({}{})", dead.process, printable(&dead.program), owner(dead.user))
}

/// Returns ` of user UID`, unless the user is the caller.
fn owner(user: u32) -> String {
    let is_caller = user == rustix::process::geteuid().as_raw();
    if is_caller { String::new() } else { format!(" of user {user}") }
}

/// Returns the output for one process.
fn page(recording: &Recording, all: bool) -> String {
    let state = match recording.running {
        Some(true) => "running",
        Some(false) => "has died",
        None => "in another PID namespace",
    };
    let program = printable(&recording.program);
    let (process, owner) = (recording.process, owner(recording.user));
    let mut page = say::bold(format_args!("{program} (process {process}{owner}, {state})"));
    let events = &recording.events;
    let shown = if all { events.len() } else { events.len().min(MAX_EVENTS) };
    let (earlier, last) = events.split_at(events.len() - shown);
    if !earlier.is_empty() {
        page += &format!("\n  {} earlier, shown with --all", earlier.len());
    }
    let names: Vec<_> = last.iter().map(|event| printable(&event.thread_name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    for (event, name) in last.iter().zip(names) {
        page += &format!("\n  {}  {name:width$}  {}", time_of_day(event), text(event));
    }
    page + "\n"
}

/// Returns the queue pair of an event, and what happened.
fn text(event: &Event) -> String {
    let recorded = Recorded { kind: event.kind, argument: event.argument };
    match event.qp {
        0 => format!("{:8}  {recorded}", "-"),
        qp => format!("{qp:#08x}  {recorded}"),
    }
}

/// Returns the time of day (UTC) of an event, with microseconds. Empty if the machine has restarted since.
fn time_of_day(event: &Event) -> String {
    event.time.map_or_else(String::new, |nanoseconds| {
        let (seconds, fraction) = (nanoseconds / 1_000_000_000 % 86_400, nanoseconds / 1000 % 1_000_000);
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        format!("{hours:02}:{minutes:02}:{:02}.{fraction:06}", seconds % 60)
    })
}
