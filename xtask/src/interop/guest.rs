//! The guest: Linux siw under QEMU, and a shell in it. Before this: `guest/build` made it. After: `stage.rs` runs programs in it.
//!
//! Once up, the guest connects to a port of this process, and a shell there does what comes on that connection. The end of each
//! command is a line with its number and exit code, so nothing has to be guessed or waited out.

use crate::process::{Ended, Process};
use crate::shell::{Result, command};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

/// The guest's address, and the port at which its servers listen.
pub(super) const ADDRESS: &str = "10.0.2.15";
pub(super) const PORT: u16 = 7174;
/// This host, as the guest sees its loopback.
pub(super) const HOST: &str = "10.0.2.2";

/// No program takes longer in the guest, which then kills it.
const SECONDS: u32 = 45;
/// The guest answers before that.
const PATIENCE: Duration = Duration::from_secs(60);
/// A boot serves everything that is run against a variant.
const LIFETIME: Duration = Duration::from_secs(900);

/// A guest that runs. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Guest {
    boot: Process,
    shell: BufReader<TcpStream>,
    commands: u32,
    /// It is gone, or does not answer: said once, with what it had on its console.
    lost: bool,
    /// The port of the host that leads to [`PORT`] in the guest.
    pub(super) forwarded: u16,
}

impl Guest {
    /// Boots the guest in a folder. A port of the host leads to its [`PORT`]. What it sends and receives is recorded in the file
    /// `capture`.
    pub(super) fn boot(folder: &Path, forwarded: u16, console: &Path, capture: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| format!("the guest's shell: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let mut qemu = command("guest/boot", &[]);
        qemu.arg(folder).arg(format!("exec nc {HOST} {port} -e sh"));
        qemu.arg(format!("tcp:127.0.0.1:{forwarded}-:{PORT}"));
        qemu.env("GUEST_PCAP", capture).env("GUEST_SECONDS", LIFETIME.as_secs().to_string());
        let mut boot = Process::start(qemu, "guest", console)?;
        let mut shell = None;
        boot.wait_until("its shell connects", |_| {
            let accepted = listener.accept();
            let waits = matches!(&accepted, Err(error) if error.kind() == ErrorKind::WouldBlock);
            shell = (!waits).then_some(accepted);
            !waits
        })?;
        let (shell, _) = shell.ok_or("no connection")?.map_err(failed)?;
        shell.set_nonblocking(false).and_then(|()| shell.set_read_timeout(Some(PATIENCE))).map_err(failed)?;
        Ok(Self { boot, shell: BufReader::new(shell), commands: 0, lost: false, forwarded })
    }

    /// Runs commands to their end.
    pub(super) fn run(&mut self, commands: &str) -> Result<Ended> {
        self.commands += 1;
        let end = format!("END {} ", self.commands);
        let line = format!("{{ {commands}\n}} </dev/null 2>&1; code=$?; echo; echo {end}$code\n");
        self.say(&line)?;
        let mut output = String::new();
        loop {
            let mut line = Vec::new();
            let read = self.shell.read_until(b'\n', &mut line);
            let line = String::from_utf8_lossy(&line);
            match read {
                Err(error) => return Err(self.complain(&format!("does not end `{commands}` ({error})"))),
                Ok(0) => return Err(self.complain(&format!("went away during `{commands}`"))),
                Ok(_) => match line.strip_prefix(&end).and_then(|code| code.trim().parse().ok()) {
                    Some(code) => {
                        output.truncate(output.trim_end().len());
                        return Ok(Ended { code, output });
                    }
                    None => output.push_str(&line),
                },
            }
        }
    }

    fn complain(&mut self, what: &str) -> String {
        self.lost = true;
        self.boot.complaint(&format!("{what}; its console:"))
    }

    /// Runs a program to its end.
    pub(super) fn program(&mut self, words: &[String]) -> Result<Ended> {
        self.run(&format!("timeout -s KILL {SECONDS} {}", words.join(" ")))
    }

    /// Starts a server, and waits until it listens. There is one at a time.
    pub(super) fn serve(&mut self, words: &[String]) -> Result {
        let line = words.join(" ");
        self.run(&format!("timeout -s KILL {SECONDS} {line} >/tmp/server.log 2>&1 & server=$!"))?;
        self.listens()
    }

    /// Waits until the server listens.
    pub(super) fn listens(&mut self) -> Result {
        let listens = format!("grep -q ':{PORT:04X} 00000000:0000 0A' /proc/net/tcp");
        let waited = self.run(&format!(
            "until {listens}; do kill -0 $server || break; done; {listens} || {{ cat /tmp/server.log; false; }}"
        ))?;
        match waited.code {
            0 => Ok(()),
            _ => Err(format!("the server in the guest does not listen: {waited}")),
        }
    }

    /// Waits until the server ends.
    pub(super) fn served(&mut self) -> Result<Ended> {
        self.run("wait $server; code=$?; cat /tmp/server.log; (exit $code)")
    }

    /// Ends a server that would serve for ever.
    pub(super) fn stop_serving(&mut self) -> Result<Ended> {
        self.run("kill -KILL $server; wait $server; cat /tmp/server.log")
    }

    /// Powers it off, so that all that QEMU recorded is in its file.
    pub(super) fn power_off(mut self) -> Result {
        self.say("exit 0\n")?;
        self.boot.patience(PATIENCE);
        self.boot.finish().map(drop)
    }

    fn say(&mut self, line: &str) -> Result {
        if self.lost {
            return Err("the guest was lost before".into());
        }
        let said = self.shell.get_mut().write_all(line.as_bytes());
        said.map_err(|error| self.complain(&format!("does not hear ({error})")))
    }
}
