//! Runs the commands of the Dockerfiles and of the job in docs/ci.md. Docker itself is not needed: they run in
//! a Debian root directory, as they would in an image of that release.

use super::document::{Step, Terminal, fenced};
use crate::shell::Result;

/// Commands that root runs first, with the network of the host, and then the commands of the job, in a
/// network of their own.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) fetching: Vec<Step>,
    pub(super) running: Vec<Step>,
}

/// The folder with the files of the release's image, from which `COPY --from` copies.
pub(super) const IMAGE: &str = "/image";

/// Turns each Dockerfile into a job, with an equivalent command for `COPY`.
pub(super) fn dockerfiles(page: &str) -> Result<Vec<Job>> {
    let found = fenced(page).into_iter().filter(|(_, language, _)| *language == "dockerfile");
    let jobs: Vec<Job> = found.map(|(line, _, text)| dockerfile(line, &text)).collect::<Result<_>>()?;
    if jobs.is_empty() { Err("docs/ci.md has no dockerfile block".into()) } else { Ok(jobs) }
}

fn dockerfile(line: usize, text: &str) -> Result<Job> {
    let mut job = Job::default();
    let mut user = "";
    let image = concat!("--from=ironwarp:", env!("CARGO_PKG_VERSION"), " ");
    for instruction in text.replace("\\\n", " ").lines() {
        let Some((word, rest)) = instruction.split_once(' ') else { continue };
        let command = match word {
            "RUN" => rest.to_owned(),
            "COPY" if rest.starts_with(image) => format!("cp -a {IMAGE}{}", &rest[image.len()..]),
            "COPY" => format!("cp {rest}"),
            "ENV" => format!("export {rest}"),
            // The equivalent shell command for what the image runs.
            "CMD" => format!("{user}{}", rest.trim_matches(['[', ']']).replace(',', " ")),
            "USER" if rest == "nobody" => {
                user = "setpriv --reuid=65534 --regid=65534 --clear-groups -- ";
                continue;
            }
            "FROM" if rest == "debian:12" => continue,
            other => return Err(format!("docs/ci.md:{line}: unsupported instruction {other}")),
        };
        job.add(line, command);
    }
    Ok(job)
}

/// The steps of the workflow that have commands.
pub(super) fn workflow(page: &str) -> Result<Job> {
    let (first, _, text) = find(page, "yaml")?;
    let mut job = Job::default();
    let mut lines = (first..).zip(text.lines()).peekable();
    while let Some((number, line)) = lines.next() {
        let Some((before, command)) = line.split_once("run: ") else { continue };
        if command != "|" {
            job.add(number, command.to_owned());
            continue;
        }
        let mut commands = String::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| indent(line) > before.len()) {
            commands += &format!("{}\n", line.trim());
        }
        job.add(number, commands);
    }
    Ok(job)
}

impl Job {
    fn add(&mut self, line: usize, commands: String) {
        let list = if commands.contains("apt-get") { &mut self.fetching } else { &mut self.running };
        let commands = commands.trim_end().to_owned() + "\n";
        list.push(Step { line, terminal: Terminal::Here, port: None, commands, output: None });
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn find<'p>(page: &'p str, language: &str) -> Result<(usize, &'p str, String)> {
    let blocks = fenced(page);
    let found = blocks.into_iter().find(|(_, found, _)| *found == language);
    found.ok_or_else(|| format!("docs/ci.md has no {language} block"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(steps: &[Step]) -> Vec<&str> {
        steps.iter().map(|step| step.commands.as_str()).collect()
    }

    #[test]
    fn the_commands_of_a_dockerfile() -> Result {
        let page = "```dockerfile\nFROM debian:12\nRUN apt-get update \\\n && apt-get install x\nCOPY a /b\nRUN c\nUSER nobody\nCMD [\"d\", \"e\"]\n```\n";
        let page =
            format!("{page}```dockerfile\nCOPY --from=ironwarp:{} /x /y\n```\n", env!("CARGO_PKG_VERSION"));
        let [job, other] = &dockerfiles(&page)?[..] else { return Err("not two jobs".into()) };
        assert_eq!(commands(&other.running), ["cp -a /image/x /y\n"]);
        assert_eq!(commands(&job.fetching), ["apt-get update   && apt-get install x\n"]);
        let [.., last] = &commands(&job.running)[..] else { return Err("no commands".into()) };
        assert!(last.starts_with("setpriv") && last.ends_with(" \"d\"  \"e\"\n"), "{last}");
        assert_eq!(commands(&job.running)[..2], ["cp a /b\n", "c\n"]);
        Ok(())
    }

    #[test]
    fn the_commands_of_a_workflow() -> Result {
        let page = "```yaml\nsteps:\n  - uses: x\n  - run: a\n  - name: b\n    run: |\n      c\n      d\n  - run: e\n```\n";
        assert_eq!(commands(&workflow(page)?.running), ["a\n", "c\nd\n", "e\n"]);
        Ok(())
    }
}
