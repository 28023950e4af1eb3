//! Finds the locked instructions in what callgrind has counted: instructions with a `lock` prefix, and exchanges with
//! memory, which lock without one. Each takes several nanoseconds, however few instructions surround it.
//!
//! callgrind writes how often each address was executed, and objdump tells which instruction is there.

use crate::shell::{Result, command, output};
use std::collections::{HashMap, HashSet};

/// The addresses of the locked instructions of each program and library, which are disassembled once.
#[derive(Debug, Default)]
pub(super) struct Locked(HashMap<String, HashSet<u64>>);

impl Locked {
    /// Counts the executed instructions that are locked. `callgrind` is the output of callgrind with addresses of
    /// instructions, neither positions nor names compressed.
    pub(super) fn count(&mut self, callgrind: &str) -> Result<u64> {
        let mut total = 0;
        for (object, address, count) in executed(callgrind) {
            if !self.0.contains_key(object) {
                let code = output(&mut command("objdump", &["-d", "--no-show-raw-insn", object]))?;
                self.0.insert(object.to_owned(), locked_addresses(&code));
            }
            if self.0[object].contains(&address) {
                total += count;
            }
        }
        Ok(total)
    }
}

/// Returns object, address and number of executions of each line of counts. The line after `calls=` repeats what the
/// called function counts, and is left out. Instructions outside of any file, such as those of the vDSO, are as well.
fn executed(callgrind: &str) -> impl Iterator<Item = (&str, u64, u64)> {
    let (mut object, mut after_call) = ("", false);
    callgrind.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        }
        if line.starts_with("calls=") {
            after_call = true;
            return None;
        }
        let (address, counts) = line.strip_prefix("0x")?.split_once(' ')?;
        if std::mem::take(&mut after_call) || !object.starts_with('/') {
            return None;
        }
        let count = counts.rsplit(' ').next()?.parse().ok()?;
        Some((object, u64::from_str_radix(address, 16).ok()?, count))
    })
}

/// Returns the addresses of the locked instructions in the output of objdump.
fn locked_addresses(code: &str) -> HashSet<u64> {
    let address = |line: &str| {
        let (address, instruction) = line.trim_start().split_once(":\t")?;
        let exchanges_memory = instruction.starts_with("xchg") && instruction.contains('(');
        let is_locked = instruction.starts_with("lock ") || exchanges_memory;
        is_locked.then(|| u64::from_str_radix(address, 16).ok()).flatten()
    };
    code.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
  11c22f:\tlock cmpxchg %ecx,(%rbx)
  11c233:\txchg   %ax,%ax
  11c235:\txchg   %eax,0x0(%r13)
  11c239:\tmov    %eax,(%rbx)
";

    #[test]
    fn locked_instructions_have_a_prefix_or_exchange_memory() {
        assert_eq!(locked_addresses(CODE), HashSet::from([0x11_c22f, 0x11_c235]));
    }

    #[test]
    fn instructions_count_where_they_are_executed_and_not_at_calls() {
        let callgrind = "\
positions: instr line
fn=send
ob=/bin/program
0x11c22f 7 1000
0x11c239 7 1000
cob=/lib/libc.so.6
cfn=memcpy
calls=1000 0x500 0
0x11c235 8 90000
0x11c235 8 500
ob=???
0x11c22f 0 3
";
        let mut locked = Locked(HashMap::from([("/bin/program".into(), locked_addresses(CODE))]));
        assert_eq!(locked.count(callgrind), Ok(1500));
    }
}
