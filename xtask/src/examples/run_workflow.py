"""Checks examples/github-action, and runs its steps in order as a runner of GitHub would.

usage: run_workflow.py FOLDER TARBALL

FOLDER/checkout/examples has the examples. Steps run in FOLDER/repository, to which the commands of the README copy them,
and download from FOLDER.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import yaml

FOLDER, TARBALL = map(pathlib.Path, sys.argv[1:])
CHECKOUT = FOLDER / "checkout"
PROJECT = FOLDER / "repository"
ACTION = "./.github/actions/ironwarp"
REPOSITORY = "owner/name"


def need(condition, message):
    if not condition:
        sys.exit(f"examples/github-action: {message}")


def expand(text, values):
    """Replaces expressions such as ${{ inputs.name }}."""

    def value(match):
        need(match[1] in values, f"unknown value {match[1]}")
        return values[match[1]]

    return re.sub(r"\$\{\{ *([\w.]+) *\}\}", value, str(text))


class Runner:
    """What steps share: a folder for temporary files, and the files that add to the PATH and the environment."""

    def __init__(self, name):
        self.temp = FOLDER / name
        self.temp.mkdir()
        self.path = self.temp / "path"
        self.variables = self.temp / "variables"
        self.path.touch()
        self.variables.touch()

    def environment(self):
        path = os.pathsep.join([*reversed(self.path.read_text().split()), "/usr/bin", "/bin"])
        return {
            "PATH": path,
            "HOME": str(self.temp),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_PATH": str(self.path),
            "GITHUB_ENV": str(self.variables),
            "GITHUB_SERVER_URL": FOLDER.as_uri(),
            "CFLAGS": "-O2 -g -Werror",
            "PYTHONDONTWRITEBYTECODE": "1",
            **dict(line.split("=", 1) for line in self.variables.read_text().splitlines()),
        }

    def run(self, step, values):
        """Runs the script of a step. Returns whether it succeeded, and what it printed."""
        print(f"-- {step['name']}", flush=True)
        added = {name: expand(text, values) for name, text in step.get("env", {}).items()}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail"] if step.get("shell") == "bash" else ["sh", "-e"]
        ran = subprocess.run(
            [*shell, "-c", step["run"]],
            cwd=PROJECT,
            env={**self.environment(), **added},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        print(ran.stdout, end="", flush=True)
        return ran.returncode == 0, ran.stdout

    def act(self, action, given):
        """Runs the action with these inputs, until a step fails."""
        inputs = {name: given.get(name, about.get("default", "")) for name, about in action["inputs"].items()}
        printed = ""
        for step in action["runs"]["steps"]:
            good, text = self.run(step, {f"inputs.{name}": value for name, value in inputs.items()})
            printed += text
            if not good:
                return False, printed
        return True, printed


def check_action(action):
    need(action["runs"]["using"] == "composite", "the action is not composite")
    steps = action["runs"]["steps"]
    for step in steps:
        need({"name", "shell", "run"} <= step.keys(), f"incomplete step {step}")
        need("${{" not in step["run"], f"step {step['name']}: pass values by `env`, which cannot add commands")
    used = set(re.findall(r"inputs\.(\w+)", str(steps)))
    need(used == action["inputs"].keys(), f"the steps use the inputs {used}, the action has {action['inputs'].keys()}")
    need("default" not in action["inputs"]["repository"], "the repository is for the owner to name")


def check_packages(command):
    """The packages that the workflow installs are those that `cargo xtask setup` installed."""
    packages = command.split("--no-install-recommends ")[1].split()
    status = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages]
    shown = subprocess.run(status, stdout=subprocess.PIPE, text=True, check=False).stdout
    lacks = [package for package in packages if f"{package} installed\n" not in shown]
    need(not lacks, f"not installed: {' '.join(lacks)}: run `cargo xtask setup`")


def run_workflow(workflow, action):
    runner = Runner("workflow")
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if step.get("name") == "Packages":
                check_packages(step["run"])
            elif "run" in step:
                need(runner.run(step, {})[0], f"step {step['name']} failed")
            elif step["uses"] == ACTION:
                unknown = step["with"].keys() - action["inputs"].keys()
                need(not unknown, f"the workflow sets {unknown}, which are not inputs of the action")
                values = {"vars.IRONWARP_REPOSITORY": REPOSITORY}
                given = {name: expand(text, values) for name, text in step["with"].items()}
                need(runner.act(action, given)[0], "the action failed")
            else:
                need(step["uses"].startswith("actions/checkout@"), f"unexpected action {step['uses']}")


def copy_as_described():
    """Runs the commands of the README that copy the files to a repository: those before the table of inputs."""
    readme = (CHECKOUT / "examples/github-action/README.md").read_text().split("| input |")[0]
    commands = "".join(re.findall(r"^```sh\n(.*?)^```", readme, re.DOTALL | re.MULTILINE))
    need("IRONWARP=/path/to/checkout\n" in commands, "the README does not set IRONWARP")
    PROJECT.mkdir()
    commands = commands.replace("/path/to/checkout", str(CHECKOUT))
    subprocess.run(["sh", "-e", "-c", commands], cwd=PROJECT, check=True)


def main():
    copy_as_described()
    action = yaml.safe_load((PROJECT / ACTION / "action.yml").read_text())
    workflow = yaml.safe_load((PROJECT / ".github/workflows/rdma.yml").read_text())
    check_action(action)
    version = TARBALL.name.split("-")[1]
    release = FOLDER / REPOSITORY / "releases/download" / f"v{version}"
    release.mkdir(parents=True)
    shutil.copy(TARBALL, release)
    run_workflow(workflow, action)

    sha256 = hashlib.sha256(TARBALL.read_bytes()).hexdigest()
    good, text = Runner("file").act(action, {"tarball": str(TARBALL), "sha256": sha256, "name": "mlx5_0"})
    need(good and "mlx5_0" in text, "the action failed with a tarball and a name")
    good, text = Runner("forged").act(action, {"tarball": str(TARBALL), "sha256": "0" * 64})
    need(not good and "FAILED" in text, "the action does not verify the checksum")
    good, text = Runner("nothing").act(action, {"version": version})
    need(not good and "::error::" in text, "the action does not report missing inputs")
    print("examples/github-action: the workflow and the action work")


main()
