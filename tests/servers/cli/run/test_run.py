"""The interface between `quorlock run` and its command: streams, environment, exit status."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.support.wait import until
from tests.servers.cli.command import PATIENCE
from tests.servers.cli.run.conftest import events
from tests.servers.cli.schema import problems

if TYPE_CHECKING:
    from quorlock import Redlock
    from tests.servers.cli.run.conftest import Runner

SCHEMA = json.loads(
    (Path(__file__).parents[4] / "docs" / "reference" / "cli.schema.json").read_text()
)
NOBODY = "redis://127.0.0.1:1,redis://127.0.0.1:2,redis://127.0.0.1:3"


def test_streams_are_the_commands(run: Runner) -> None:
    with subprocess.Popen(["echo", "in"], stdout=subprocess.PIPE) as echo:
        done = run("x", "-c", "cat; echo out; echo err >&2", stdin=echo.stdout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in\nout\n", "err\n")


def test_there_is_no_shell_unless_asked(run: Runner) -> None:
    assert run("x", "--", "echo", "$HOME", "-n", "--ttl").stdout == "$HOME -n --ttl\n"
    assert run("x", "-c", "echo $((1 + 1))").stdout == "2\n"


def test_it_is_held_while_the_command_runs_and_free_after(run: Runner, redlock: Redlock) -> None:
    held = run.patient("x", does="obey")
    assert redlock.lock("x").locked()
    held.send(signal.SIGTERM)
    assert held.end().returncode == 0
    assert not redlock.lock("x").locked()
    assert not run.keys_stay()


STATUSES = {
    "its own": (7, ["-c", "exit 7"]),
    "by a signal": (128 + 9, ["-c", "kill -9 $$"]),
    "not found": (127, ["--", "no-such-command"]),
    "not executable": (126, ["--", "/etc/passwd"]),
    "a folder": (126, ["--", "/"]),
    "no command": (64, []),
    "two commands": (64, ["-c", "true", "--", "true"]),
    "no such option": (64, ["--nonesuch", "--", "true"]),
    "-n and -w": (64, ["-n", "-w", "1s", "--", "true"]),
    "-E beside skip": (64, ["--on-busy", "skip", "-E", "1", "--", "true"]),
    "kill-after over a quarter": (64, ["--ttl", "4s", "--kill-after", "1.1s", "--", "true"]),
    "no kill-after": (64, ["--kill-after", "0", "--", "true"]),
    "min-hold over max-hold": (64, ["--min-hold", "1h", "--max-hold", "1m", "--", "true"]),
    "min-hold over a ttl": (64, ["--min-hold", "20s", "--no-renew", "--", "true"]),
    "max-hold under a ttl": (64, ["--max-hold", "5s", "--", "true"]),
    "a ttl over max_ttl": (64, ["--ttl", "1h", "--", "true"]),
    "once-per and -w": (64, ["--once-per", "1h", "-w", "1s", "--", "true"]),
    "no once-per": (64, ["--once-per", "0", "--", "true"]),
    "too long a once-per": (64, ["--once-per", "9999999h", "--", "touch", "ran"]),
    "digits without end": (64, ["--ttl", "9" * 400, "--", "touch", "ran"]),
    "no nodes": (78, ["--nodes", "http://a", "--", "true"]),
    "no quorum": (69, ["--nodes", NOBODY, "-n", "--", "true"]),
}


@pytest.mark.parametrize("case", STATUSES)
def test_exit_status(case: str, run: Runner) -> None:
    status, arguments = STATUSES[case]
    done = run("x", *arguments)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert not (run.folder / "ran").exists()
    assert not run.keys_stay()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ttl", "soon", "--", "true"], "--ttl: 'soon' is no duration"),
        (["--nonesuch", "--", "true"], "no such option --nonesuch"),
        (["--kill-after", "0", "--", "true"], "--kill-after: give more than 0"),
        ([], "the command is missing"),
    ],
)
def test_wrong_usage_is_an_event_too(words: list[str], message: str, run: Runner) -> None:
    (event,) = events(run("--json")).values()
    assert (event["resource"], event["message"][:19]) == ("", "RESOURCE is missing")
    done = run("--json", "x", *words)
    (event,) = events(done).values()
    assert (done.returncode, done.stdout) == (64, "")
    assert (event["event"], event["status"], event["resource"]) == ("failed", 64, "x")
    assert event["message"].startswith(message)


def test_refused_rights_are_reported_without_the_password(run: Runner) -> None:
    urls = [url.replace("unix://", "unix://me:hush-hush@") for url in run.nodes.urls]
    done = run("x", "--nodes", ",".join(urls), "--", "true")
    assert done.returncode == 77, done.stderr
    assert "hush" not in done.stderr


def test_the_environment(run: Runner) -> None:
    """The nodes are among it: no URL of theirs has a password."""
    # An empty password, for the nodes have none.
    run.environment |= {"QUORLOCK_PASSWORD": "", "QUORLOCK_FENCE": "of another", "MINE": "1"}
    reported = dict(
        line.split("=", 1)
        for line in run("x:y", "--fencing", "--ttl", "5s", "--", "env").stdout.splitlines()
    )
    assert reported["MINE"] == "1"
    ours = {name: value for name, value in reported.items() if name.startswith("QUORLOCK_")}
    ours.pop("QUORLOCK_TEST_SESSION", None)  # tests/harness/guards.py
    assert ours.keys() == {
        *("QUORLOCK_RESOURCE", "QUORLOCK_TOKEN", "QUORLOCK_FENCE"),
        *("QUORLOCK_TTL", "QUORLOCK_VALID_UNTIL", "QUORLOCK_VALID_FOR", "QUORLOCK_NODES"),
        "QUORLOCK_CONFIG",
    }
    assert 0 < float(ours["QUORLOCK_VALID_FOR"]) < 5.0
    assert ours["QUORLOCK_RESOURCE"] == "x:y"
    assert float(ours["QUORLOCK_TTL"]) == 5.0
    assert int(ours["QUORLOCK_FENCE"]) > 0
    assert "QUORLOCK_FENCE" not in run("x:y", "--", "env").stdout


def test_the_token_is_that_of_the_lease(run: Runner, redlock: Redlock) -> None:
    done = run("x", "-v", "-c", "echo $QUORLOCK_TOKEN; read wait", stdin=subprocess.PIPE)
    token = done.stdout.strip()
    assert len(token) >= 32
    assert token not in done.stderr
    assert not redlock.release("x", token)


def test_what_is_open_for_the_command_stays_open(run: Runner) -> None:
    path = run.folder / "three"
    with path.open("w") as file:
        run("x", "-c", f"echo hello > /dev/fd/{file.fileno()}", pass_fds=[file.fileno()])
    assert path.read_text() == "hello\n"


@pytest.mark.parametrize(
    ("options", "status", "is_silent"),
    [
        (["-n"], 75, False),
        (["-n", "-q"], 75, True),
        (["-w", "50ms"], 75, False),
        (["-n", "-E", "3"], 3, False),
        (["--on-busy", "skip"], 0, True),
        (["--on-busy", "skip", "-w", "50ms"], 0, True),
    ],
)
def test_held_by_another(
    options: list[str], status: int, is_silent: bool, run: Runner, redlock: Redlock
) -> None:
    with redlock.lock("x"):
        done = run("x", *options, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (status, "")
    assert is_silent == (done.stderr == "")
    assert is_silent or "'x' is held by " in done.stderr


def test_it_waits_until_it_is_free(run: Runner, redlock: Redlock) -> None:
    lease = redlock.lock("x").acquire()
    waiting = run.start("x", "--", "echo", "ran")
    assert waiting.process.poll() is None
    lease.release()
    assert waiting.end().stdout == "ran\n"


def test_min_hold_keeps_it_after_a_short_job_and_a_signal_ends_that(run: Runner) -> None:
    short = run.start("x", "--ttl", "1s", "--min-hold", "1h", "-v", "-c", "echo ran; exit 3")
    assert short.process.stdout is not None
    assert short.process.stdout.readline() == "ran\n"
    assert run("x", "-w", "2s", "--", "true").returncode == 75  # twice the ttl: it is renewed
    short.send(signal.SIGTERM)
    assert short.end().returncode == 3
    assert not run.keys_stay()


def test_a_signal_that_ends_the_command_ends_min_hold_too(run: Runner) -> None:
    """Or a service that is stopped would be killed instead, and the lock stay for its ttl."""
    held = run.patient("x", "--min-hold", "1h", does="obey")
    held.send(signal.SIGTERM)
    assert held.end().returncode == 0
    assert not run.keys_stay()


def test_json_has_one_line_for_every_event(run: Runner) -> None:
    reported = events(run("x", "--json", "--fencing", "-c", "exit 4"))
    assert list(reported) == ["acquired", "ended"]
    assert all(event["resource"] == "x" and event["message"] for event in reported.values())
    assert reported["acquired"]["ttl"] == 10.0
    assert reported["acquired"]["fence"] > 0
    assert reported["acquired"]["valid_until"] <= reported["ended"]["valid_until"]
    assert reported["ended"]["status"] == 4
    failed = events(run("x", "--json", "--nodes", NOBODY, "-n", "--", "true"))
    assert failed["failed"]["status"] == 69


def test_once_per_runs_what_has_succeeded_no_more(run: Runner, redlock: Redlock) -> None:
    """A failure is no success; others are refused, at once, and see who has done it."""
    once = ("x", "--once-per", "1h", "--owner", "web-3")
    assert run(*once, "-c", "exit 4").returncode == 4
    assert not run.keys_stay()
    assert run(*once, "--", "echo", "ran").stdout == "ran\n"
    again = run(*once, "--", "echo", "ran")
    assert (again.returncode, again.stdout) == (75, "")
    assert "'x' was done by web-3: " in again.stderr
    assert "; it counts as done for at most 3" in again.stderr
    skipped = run(*once, "--on-busy", "skip", "--", "echo", "ran")
    assert (skipped.returncode, skipped.stdout, skipped.stderr) == (0, "", "")
    found = redlock.inspect("x")
    assert (found.done, found.owner) == (True, "web-3")
    assert 3_500 < (found.ttl_left or 0) <= 3_600
    assert found.nodes[0].holder is not None
    assert redlock.break_lease("x", found.nodes[0].holder)
    assert run(*once, "--", "echo", "ran").stdout == "ran\n"


def test_once_per_does_not_keep_what_a_signal_ended(run: Runner) -> None:
    """Also if its status is 0: the work was stopped."""
    ended = run.patient("x", "--once-per", "1h", does="obey")
    ended.send(signal.SIGTERM)
    assert ended.end().returncode == 0
    assert not run.keys_stay()


def test_once_per_is_reported(run: Runner) -> None:
    reported = events(run("x", "--json", "--once-per", "1m", "--", "true"))
    assert list(reported) == ["acquired", "ended", "kept"]
    assert reported["kept"]["seconds"] == 60
    assert all(problems(one, SCHEMA["$defs"]["event"], SCHEMA) == [] for one in reported.values())
    held = run("x", "-v", "--once-per", "1m", "-n", "--", "true")
    assert held.returncode == 75


def test_waiting_is_reported_with_its_holder(run: Runner, redlock: Redlock) -> None:
    """Once for each holder, and not by default."""
    lease = redlock.lock("x", ttl=20.0).acquire()
    (holder,) = {view.holder for view in redlock.inspect("x").nodes} - {None}
    silent = run.start("x", "--", "true")
    verbose = run.start("x", "-v", "--", "true")
    told = run.start("x", "--json", "-w", "2s", "--", "true").end()
    waiting, busy = [json.loads(line) for line in told.stderr.splitlines()]
    assert (waiting["event"], waiting["holder"]) == ("waiting", holder)
    assert waiting["owner"] == redlock.inspect("x").owner
    assert busy["event"] == "busy"
    assert 15.0 < busy["holder_ttl"] < waiting["holder_ttl"] <= 20.0
    for event in (waiting, busy):
        assert problems(event, SCHEMA["$defs"]["event"], SCHEMA) == []
        assert datetime.fromisoformat(event["time"]).utcoffset() == timedelta(0)
        assert event["time"].endswith("Z")
    lease.release()
    first, *others = verbose.end().stderr.splitlines()
    assert re.fullmatch(
        rf"quorlock run: waiting: held by \S+ \({holder}\), at most 1\d\.\d s more(, \d wait)?",
        first,
    )
    assert others[-2:] == [
        "quorlock run: acquired",
        "quorlock run: the command ended with status 0",
    ]
    assert silent.end().stderr == ""


def test_nodes_that_cast_no_vote_are_reported_while_it_waits(run: Runner) -> None:
    for node in run.nodes:
        node.execute("DEL", "quorlock:born-empty")
    (run.folder / "nodes.toml").write_text("max_ttl = 86400.0\noutage_timeout = 3.0\n")
    done = run("x", "--json", "--config", "nodes.toml", "--wait", "3s", "--", "true")
    assert done.returncode == 69
    waiting, failed = events(done)["waiting"], events(done)["failed"]
    assert (waiting["holder"], waiting["holder_ttl"]) == (None, None)
    assert waiting["message"].startswith("waiting: 5 of 5 nodes cast no vote: ")
    assert problems(failed, SCHEMA["$defs"]["event"], SCHEMA) == []


def test_min_hold_is_reported(run: Runner) -> None:
    done = run("x", "--json", "--min-hold", "1s", "--", "true")
    assert list(events(done)) == ["acquired", "ended", "holding"]
    assert 0 < events(done)["holding"]["seconds"] <= 1.0
    said = run("x", "-v", "--min-hold", "1s", "--", "true").stderr
    assert "s more, because of --min-hold" in said


def test_quiet_says_nothing_and_verbose_what_is_done(run: Runner) -> None:
    assert run("x", "--", "true").stderr == ""
    assert run("x", "-v", "--", "true").stderr.splitlines() == [
        "quorlock run: acquired",
        "quorlock run: the command ended with status 0",
    ]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_interrupted_while_it_waits_it_ends_and_leaves_nothing(
    name: str, run: Runner, redlock: Redlock
) -> None:
    number = signal.Signals[name]
    with redlock.lock("x"):
        waiting = run.start("x", "--", "echo", "ran")
        assert until(lambda: has_asked(run), PATIENCE)
        waiting.send(signal.SIGUSR1)  # this one is for the command
        waiting.send(number)
        done = waiting.end()
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")
    assert not run.keys_stay()


def has_asked(run: Runner) -> bool:
    """A second client is connected to the first node."""
    return str(run.nodes[0].execute("CLIENT", "LIST")).count("name=quorlock ") > 1
