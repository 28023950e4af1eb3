"""Tests a program on Ironwarp: as it is, with injected faults, and with a capture of its packets.

The program is ../c/pingpong. Replace PROGRAM and what the tests expect to test your own.
"""

import os
import pathlib
import re
import subprocess

import pytest

C = pathlib.Path(__file__).resolve().parent.parent / "c"
PROGRAM = C / "pingpong"
VERIFIED = "100 messages each way and an RDMA Write of 65536 bytes each: all verified\n"
TIMEOUT = 60  # seconds, much more than any test takes


@pytest.fixture(scope="session", autouse=True)
def build():
    subprocess.run(["make", "-C", C], check=True)


def start(end, port, options):
    command = ["ironwarp", "run", *options, "--", PROGRAM, end, "127.0.0.1", port]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """Waits until the program ends. Returns its exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the program did not end; it printed {process.communicate()}")
    return process.returncode, out, err


@pytest.fixture
def serve():
    """Starts servers, which pick free ports, and kills those that still run at the end of the test."""
    servers = []

    def serve(*options):
        server = start("server", "0", options)
        servers.append(server)
        line = server.stdout.readline()  # printed once clients can connect
        port = re.fullmatch(r"listening on port (\d+)\n", line)
        assert port, f"the server printed {line!r} and {server.communicate(timeout=TIMEOUT)}"
        return server, port[1]

    yield serve
    for server in servers:
        server.kill()
        server.communicate()


def run_client(port, *options):
    return finish(start("client", port, options))


@pytest.mark.parametrize("persona", ["roce", "iwarp"])
def test_data_arrives(serve, persona):
    server, port = serve("--persona", persona)
    assert run_client(port, "--persona", persona) == (0, VERIFIED, "")
    assert finish(server) == (0, VERIFIED, "")


def test_messages_in_pieces_and_late(serve):
    """Faults that a correct program does not notice."""
    options = ["--faults", "split=0.2,delay=100us..1ms@0.05", "--seed", "7"]
    server, port = serve(*options)
    for code, out, err in [run_client(port, *options), finish(server)]:
        assert (code, out) == (0, VERIFIED), err
        assert re.search(r": [1-9]\d* splits, [1-9]\d* delays,", err), err  # there were some


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_lost_connection_is_reported(serve, seed):
    """The same seed cuts the connection at the same call again. What a program sees first depends on time."""
    reports = [
        r"\w+ failed: transport retry counter exceeded \(status 12,",
        r"\w+ failed: Work Request Flushed Error \(status 5,",
        "disconnected while waiting for a message$",
    ]
    server, port = serve()
    client = run_client(port, "--faults", "cut@0.02", "--seed", seed)
    assert " 1 cuts," in client[2]
    # The server runs without faults: it must notice by itself, and must not claim success.
    for code, out, err in [client, finish(server)]:
        assert (code, out) == (1, ""), err
        assert re.search(f"^pingpong: ({'|'.join(reports)})", err, re.MULTILINE), err


def test_memory_that_cannot_be_registered_is_reported(serve):
    """Here the environment selects the fault, as it would for a program that starts others."""
    server, port = serve()
    environment = {"IRONWARP_FAULTS": "no-register@1", "IRONWARP_SEED": "7"}
    command = ["ironwarp", "run", "--", PROGRAM, "client", "127.0.0.1", port]
    client = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (client.returncode, client.stdout) == (1, "")
    assert "\npingpong: ibv_reg_mr: Cannot allocate memory\n" in client.stderr
    # The server has not noticed, and serves the next client.
    assert run_client(port) == (0, VERIFIED, "")
    assert finish(server) == (0, VERIFIED, "")


def test_the_capture_has_all_messages(serve, tmp_path):
    file = tmp_path / "client.pcap"
    server, port = serve()
    assert run_client(port, "--pcap", file) == (0, VERIFIED, "")
    assert finish(server) == (0, VERIFIED, "")
    sends = "iwarp_rdma.opcode == 3 && iwarp_ddp.last_flag == 1"  # the last segment of each message
    # This dissector would claim some messages by their first bytes.
    tshark = ["tshark", "-r", file, "--disable-protocol", "rpcordma", "-o", "tcp.try_heuristic_first:TRUE"]
    shown = subprocess.run([*tshark, "-Y", sends], check=True, capture_output=True, text=True)
    assert len(shown.stdout.splitlines()) == 200
    wrong = "_ws.malformed || _ws.expert.severity == error"
    assert subprocess.run([*tshark, "-Y", wrong], check=True, capture_output=True, text=True).stdout == ""
