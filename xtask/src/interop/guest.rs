//! The guest: Linux siw under QEMU, with a shell.
//!
//! After boot, the guest connects to a port of this process, and a shell there runs the commands that it
//! receives. A line with its number and exit code ends each command, so nothing relies on timeouts.

use crate::shell::{Result, command};
use ironwarp_testkit::process::{Exit, Process};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

/// The guest's address, and the port of its servers.
pub(super) const ADDRESS: &str = "10.0.2.15";
pub(super) const PORT: u16 = 7174;
/// The address of this host's loopback in the guest.
pub(super) const HOST: &str = "10.0.2.2";

/// Time limit of a program in the guest, which then kills it.
const SECONDS: u32 = 45;
/// Time limit for an answer of the guest.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of a guest, which is booted once for everything that is run against a variant.
const LIFETIME: Duration = Duration::from_secs(900);

/// A running guest. Killed when dropped.
#[derive(Debug)]
pub(super) struct Guest {
    boot: Process,
    shell: BufReader<TcpStream>,
    commands: u32,
    /// The guest is gone or does not answer. The error with its console is reported once.
    lost: bool,
    /// The port of the host that is forwarded to [`PORT`] in the guest.
    pub(super) forwarded: u16,
}

impl Guest {
    /// Boots the guest in a folder and forwards a port of the host to its [`PORT`]. Records its packets in
    /// the file `capture`.
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

    /// Runs commands and waits until they end.
    pub(super) fn run(&mut self, commands: &str) -> Result<Exit> {
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
                Err(error) => return Err(self.fail(&format!("did not finish `{commands}` ({error})"))),
                Ok(0) => return Err(self.fail(&format!("ended during `{commands}`"))),
                Ok(_) => match line.strip_prefix(&end).and_then(|code| code.trim().parse().ok()) {
                    Some(code) => {
                        output.truncate(output.trim_end().len());
                        return Ok(Exit { code, output });
                    }
                    None => output.push_str(&line),
                },
            }
        }
    }

    fn fail(&mut self, what: &str) -> String {
        self.lost = true;
        self.boot.error(&format!("{what}; its console:"))
    }

    /// Runs a program and waits until it ends.
    pub(super) fn program(&mut self, words: &[String]) -> Result<Exit> {
        self.run(&format!("timeout -s KILL {SECONDS} {}", words.join(" ")))
    }

    /// Starts a server and waits until it listens. There is one at a time.
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
    pub(super) fn served(&mut self) -> Result<Exit> {
        self.run("wait $server; code=$?; cat /tmp/server.log; (exit $code)")
    }

    /// Ends a server that would run forever.
    pub(super) fn stop_serving(&mut self) -> Result<Exit> {
        self.run("kill -KILL $server; wait $server; cat /tmp/server.log")
    }

    /// Powers it off, which completes QEMU's recording.
    pub(super) fn power_off(mut self) -> Result {
        self.say("exit 0\n")?;
        self.boot.set_timeout(PATIENCE);
        self.boot.finish().map(drop)
    }

    fn say(&mut self, line: &str) -> Result {
        if self.lost {
            return Err("the guest was lost earlier".into());
        }
        let said = self.shell.get_mut().write_all(line.as_bytes());
        said.map_err(|error| self.fail(&format!("does not accept commands ({error})")))
    }
}
