"""The owner on the command line: its sources, its defaults, and that it is safe to show."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from quorlock import Redlock
from quorlock._cli.exit_status import EX_CONFIG, EX_TEMPFAIL
from quorlock.testing.servers import Servers
from tests.servers.cli.command import COMMAND, PATIENCE, Shell, at_last

HOST = socket.gethostname()


def owner_of(nodes: Servers, resource: str = "a") -> str | None:
    with Redlock(nodes.urls) as redlock:
        return redlock.inspect(resource).owner


def acquired(shell: Shell, nodes: Servers, *words: str, **given: str) -> str | None:
    """Return the owner of a lock that `acquire` took; release it."""
    token = shell.answer("acquire", "a", *words, given=given)
    assert at_last(nodes, "a", token)
    owner = owner_of(nodes)
    shell.answer("release", "a", "--token", token)
    return owner


def test_the_owner_of_acquire_is_the_script(shell: Shell, nodes: Servers) -> None:
    """The process of `acquire` has ended when others see its lock, but its parent has not."""
    assert acquired(shell, nodes) == f"{HOST}:{os.getpid()}"


def test_the_option_wins_then_the_environment_then_the_file(shell: Shell, nodes: Servers) -> None:
    Path(shell.home, "q.toml").write_text('owner = "from file {host}"\n')
    at = ("--config", "q.toml")
    assert acquired(shell, nodes, *at) == f"from file {HOST}"
    assert acquired(shell, nodes, *at, QUORLOCK_OWNER="from env") == "from env"
    words = (*at, "--owner", "from option")
    assert acquired(shell, nodes, *words, QUORLOCK_OWNER="from env") == "from option"


def test_an_empty_owner_is_none(shell: Shell, nodes: Servers) -> None:
    assert acquired(shell, nodes, "--owner", "") is None
    assert acquired(shell, nodes, QUORLOCK_OWNER="") is None


@pytest.mark.parametrize(
    ("source", "words", "given"),
    [
        ("--owner", ("--owner", "a\x1b[2Jb"), {}),
        ("QUORLOCK_OWNER", (), {"QUORLOCK_OWNER": "x" * 200}),
    ],
)
def test_a_wrong_owner_names_its_source(
    shell: Shell, source: str, words: tuple[str, ...], given: dict[str, str]
) -> None:
    for verb, command in (("acquire", ()), ("run", ("--", "true"))):
        done = shell.run(verb, "a", *words, *command, given=given)
        assert done.returncode == EX_CONFIG
        assert f"{source} " in done.stderr
        assert "\x1b" not in done.stderr


def test_the_owner_of_run_has_the_commands_name_and_no_argument(
    shell: Shell, nodes: Servers
) -> None:
    """The name is that of the program, and the process is `run`, which a signal would reach."""
    look = '"$@" status a --json'
    Path(shell.home, "quorlock.toml").write_text(f"nodes = {json.dumps(nodes.urls)}\n")
    words = ("/bin/sh", "-c", look, "secret-argument", *COMMAND)
    at = {"QUORLOCK_NODES": "", "QUORLOCK_CONFIG": ""}
    with shell.start("run", "a", "--", *words, given=at) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    (resource,) = json.loads(output)["resources"]
    assert resource["owner"] == f"{HOST}:{process.pid} sh"


def test_who_holds_it_is_shown_everywhere(shell: Shell, nodes: Servers) -> None:
    """The refusal, status, top and break name the holder."""
    with (
        Redlock(nodes.urls, owner="web-3:4711 nightly", ttl=30.0) as redlock,
        redlock.lock("a") as lease,  # while six commands run, on a busy machine too
    ):
        assert at_last(nodes, "a", lease.token)
        for verb in (("acquire", "a", "-w", "0"), ("run", "a", "-n", "--", "true")):
            assert "'a' is held by web-3:4711 nightly: " in shell.complaint(EX_TEMPFAIL, *verb)
        assert "held by web-3:4711 nightly (" in shell.answer("status", "a")
        assert "held by web-3:4711 nightly (" in shell.complaint(EX_TEMPFAIL, "break", "a")
        table = shell.answer("top", "--once")
        assert "web-3:..ightly" in table or "web-3:4711 nightly" in table
        (line,) = shell.answer("top", "--once", "--json").splitlines()
        assert [lock["owner"] for lock in json.loads(line)["locks"]] == ["web-3:4711 nightly"]


def test_a_hostile_owner_does_not_reach_the_terminal(shell: Shell, nodes: Servers) -> None:
    """No control character in text, and valid JSON."""
    for node in nodes:
        node.execute("SET", "a", b"0f" * 16 + b"@\x1b[2J%1B]0;x%07\xff\r\n", "PX", 60_000)
    shown = [
        shell.answer("status", "a"),
        shell.answer("top", "--once"),
        shell.complaint(EX_TEMPFAIL, "acquire", "a", "-w", "0"),
        shell.complaint(EX_TEMPFAIL, "break", "a"),
    ]
    for text in shown:
        assert "".join(text.split("\n")).isprintable()
    (resource,) = json.loads(shell.answer("status", "a", "--json"))["resources"]
    assert resource["owner"].isprintable()
