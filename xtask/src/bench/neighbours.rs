//! Busy neighbours: processes that only compute, one for each processor, at the priority of the measured
//! programs. They are not pinned, so the scheduler decides whom they disturb.

use crate::shell::{Result, command};
use std::num::NonZero;
use std::path::Path;
use std::process::Child;
use std::thread::available_parallelism;

/// The processes, which are killed on drop. They are our children, so that `judge.rs` counts them as ours.
#[derive(Debug)]
pub(super) struct Neighbours(Vec<Child>);

impl Neighbours {
    /// Starts them with our own program.
    pub(super) fn start(program: &Path) -> Result<Self> {
        let mut all = Self(Vec::new());
        for _ in 0..available_parallelism().map_or(2, NonZero::get) {
            let child = command(&program.to_string_lossy(), &["compute"]).spawn();
            all.0.push(child.map_err(|error| format!("failed to start a busy neighbour: {error}"))?);
        }
        Ok(all)
    }

    /// Fails if one has ended, because the turn was not what it should have been.
    pub(super) fn check(&mut self) -> Result {
        for child in &mut self.0 {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("a busy neighbour ended with {status} during the turn"));
            }
        }
        Ok(())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_end_are_noticed() {
        let mut neighbours = Neighbours::start(Path::new("false")).unwrap();
        neighbours.0[0].wait().unwrap();
        assert!(neighbours.check().is_err());
        assert!(Neighbours::start(Path::new("/nonexistent")).is_err());
    }

    #[test]
    fn neighbours_run_until_they_are_dropped() {
        let mut neighbours = Neighbours(vec![command("sleep", &["infinity"]).spawn().unwrap()]);
        neighbours.check().unwrap();
        let process = format!("/proc/{}", neighbours.0[0].id());
        assert!(Path::new(&process).exists());
        drop(neighbours);
        assert!(!Path::new(&process).exists());
    }
}
