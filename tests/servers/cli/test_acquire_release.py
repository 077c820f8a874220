"""`acquire`, `extend`, `release`: a lock by bare token, across processes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quorlock import Redlock
from quorlock._cli.exit_status import EX_LOST, EX_TEMPFAIL, EX_USAGE
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until
from tests.servers.cli.command import Shell, at_a_quorum, at_last


def test_the_round_trip(shell: Shell, nodes: Servers) -> None:
    """The token that was printed is on the nodes after the process has ended; others are out."""
    token = shell.answer("acquire", "a", "--ttl", "20s")
    assert at_last(nodes, "a", token)
    assert "is held by " in shell.complaint(EX_TEMPFAIL, "acquire", "a", "-w", "0")
    before = nodes[0].execute("PTTL", "a")
    assert shell.answer("extend", "a", "--token", token, "--ttl", "30s") == ""
    assert before <= 20_000
    assert sum(20_000 < node.execute("PTTL", "a") <= 30_000 for node in nodes) >= 3
    assert shell.answer("release", "a", given={"QUORLOCK_TOKEN": token}) == ""
    assert at_last(nodes, "a", None)


def test_another_token_does_nothing(shell: Shell, nodes: Servers) -> None:
    """Neither extends nor releases; nor does the right one after the end."""
    token = shell.answer("acquire", "a")
    for verb in ("extend", "release"):
        said = shell.complaint(EX_LOST, verb, "a", "--token", "another")
        assert said == f"quorlock {verb}: 'a' was not held by this token any more\n"
    assert shell.answer("release", "a", "--token", token) == ""
    for verb in ("extend", "release"):
        assert token not in shell.complaint(EX_LOST, verb, "a", "--token", token)
    assert at_last(nodes, "a", None)


def test_it_waits_for_the_time_of_w(shell: Shell, nodes: Servers) -> None:
    """The lock is released before the limit of -w."""
    with Redlock(nodes.urls) as redlock:
        lease = redlock.lock("a").acquire()
        with shell.start("acquire", "a", "-w", "30s") as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.5)
            lease.release()
            token, said = waiting.communicate()
    assert (waiting.returncode, said) == (0, "")
    assert at_a_quorum(nodes, "a", token.strip())


def test_the_token_as_variables_of_a_shell(shell: Shell) -> None:
    """Whatever the resource is called, `eval` reads it back."""
    name = "it's $(a) `b`; 'c'"
    text = shell.answer("acquire", name, "--format", "shell")
    script = f'{text}\nprintf "%s|%s" "$QUORLOCK_RESOURCE" "$QUORLOCK_TTL"'
    read = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert read.stdout == f"{name}|10.0"
    assert all(line.startswith("export QUORLOCK_") for line in text.splitlines())
    assert len(shlex.split(text)) == 6


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
@pytest.mark.parametrize(
    "name", [b"b\xe9b\xe9", "b\xe9b\xe9 \u65e5".encode()], ids=["bytes", "text"]
)
def test_the_variables_have_the_name_as_it_was_given(
    shell: Shell, nodes: Servers, name: bytes, encoding: str
) -> None:
    """`eval` and `release` find the same lock, though stdout cannot show its name."""
    words, given = ["acquire", os.fsdecode(name)], {"PYTHONIOENCODING": encoding}
    done: Any = shell.run(*words, "--format", "shell", given=given, text=False)
    assert (done.returncode, done.stderr) == (0, b""), done
    script = done.stdout + b'\nprintf "%s" "$QUORLOCK_RESOURCE"'
    read = subprocess.run(["sh", "-c", os.fsdecode(script)], capture_output=True, check=True)
    assert read.stdout == name
    assert until(lambda: name in nodes[0].keys() + nodes[1].keys())


def test_the_token_as_json(shell: Shell) -> None:
    """The remaining time is less than the ttl."""
    facts = json.loads(shell.answer("acquire", "a", "--format", "json", "--ttl", "5s"))
    assert facts.keys() == {"resource", "token", "ttl", "validity"}
    assert (facts["resource"], facts["ttl"]) == ("a", 5)
    assert 0 < facts["validity"] < 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full device is Linux's")
def test_a_lock_whose_token_could_not_be_written_is_released(shell: Shell, nodes: Servers) -> None:
    """stdout is full, or closed: no lock stays whose token is unknown."""
    with Path("/dev/full").open("w") as full:
        done = shell.run("acquire", "a", capture_output=False, stdout=full, stderr=-1)
    assert done.returncode not in (0, 1)
    assert done.stderr.startswith("quorlock acquire: ")
    assert at_last(nodes, "a", None)
    ours, theirs = os.pipe()
    os.close(ours)
    done = shell.run("acquire", "a", capture_output=False, stdout=theirs, stderr=-1)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, "")
    assert at_last(nodes, "a", None)


# `quorlock`, in which this call is followed by this signal.
SIGNALLED = """\
import signal, sys
import click
from quorlock import Lease
from quorlock._cli.main import main
call = {call}
def signalled(*arguments):
    call(*arguments)
    signal.raise_signal({number})
{call} = signalled
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("call", ["Lease.hand_over", "click.echo"])
def test_a_signal_leaves_a_token_and_a_lock_or_neither(
    call: str, number: int, shell: Shell, nodes: Servers
) -> None:
    """A printed token is valid, and the status is 0."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(call=call, number=number), "acquire", "a"],
        env=shell.environment(),
        cwd=shell.home,
        capture_output=True,
        text=True,
        check=False,
    )
    is_printed = call == "click.echo"
    assert (done.returncode, done.stderr) == (0 if is_printed else 128 + number, "")
    assert bool(done.stdout) == is_printed
    assert at_last(nodes, "a", done.stdout.strip() or None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("acquire", "RESOURCE is missing"),
        ("acquire a --ttl soon", "'soon' is no duration: 30s, 2h"),
        ("acquire a --ttl 31s", "--ttl 31s: longer than max_ttl (30s)\nhint: give at most 30s, or"),
        ("acquire a -w -1s", "'-1s' is no duration"),
        ("acquire quorlock:x", "keys that begin with 'quorlock:' are reserved"),
        ("extend a", "--token is missing\nhint: give --token, or set QUORLOCK_TOKEN"),
        (
            "release a --token ä",
            "--token: this is no token\nhint: give the token that 'quorlock acquire' printed",
        ),
        ("acquire a --colour", "no such option --colour"),
    ],
)
def test_wrong_usage(words: str, message: str, shell: Shell) -> None:
    assert message in shell.complaint(EX_USAGE, *words.split())


def test_the_token_is_in_no_other_environment_or_command(shell: Shell) -> None:
    """`--help` and errors do not show the value of QUORLOCK_TOKEN."""
    done = shell.run("release", "--help", given={"QUORLOCK_TOKEN": "canary"})
    assert "canary" not in done.stdout + done.stderr


def test_several_at_once(shell: Shell, nodes: Servers) -> None:
    """All resources of --and have one token or none; the other verbs take the same names."""
    several = ("a", "--and", "c", "--and", "b")
    token = shell.answer("acquire", *several, "--ttl", "20s")
    assert all(at_last(nodes, name, token) for name in "abc")
    said = shell.complaint(EX_TEMPFAIL, "acquire", "x", "--and", "b", "-w", "0")
    assert "'b' + 'x': 'b' is held by " in said
    assert at_last(nodes, "x", None)
    assert shell.answer("extend", *several, "--token", token, "--ttl", "30s") == ""
    assert sum(node.execute("PTTL", "c") > 20_000 for node in nodes) >= 3
    assert shell.answer("release", *several, "--token", token) == ""
    assert all(at_last(nodes, name, None) for name in "abc")
    said = shell.complaint(EX_LOST, "release", *several, "--token", token)
    assert said == "quorlock release: 'a' + 'c' + 'b' was not held by this token any more\n"


def test_several_as_json(shell: Shell) -> None:
    facts = json.loads(shell.answer("acquire", "b", "--and", "a", "--json"))
    assert facts["resource"] == "a + b"
    shell.answer("release", "a", "--and", "b", "--token", facts["token"])
