"""The end of the options of `quorlock run`: as a function, and with real commands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from quorlock._cli.run.command import command
from quorlock._cli.run.parsing import split

if TYPE_CHECKING:
    from tests.servers.cli.command import Shell
    from tests.servers.cli.run.conftest import Runner

VALUED = {"-w", "--wait", "--ttl", "-c", "--command", "-E"}

# The words after `run`: the options, the resource, and the command.
SPLITS = {
    "R rsync -n a b": ("", "R", "rsync -n a b"),
    "R -- rsync -n a b": ("", "R", "rsync -n a b"),
    "R -n rsync -n a b": ("-n", "R", "rsync -n a b"),
    "-n R rsync -n a b": ("-n", "R", "rsync -n a b"),
    "R --ttl 10s echo --ttl 5s": ("--ttl 10s", "R", "echo --ttl 5s"),
    "--ttl=10s R -w 5s -nq cmd": ("--ttl=10s -w 5s -nq", "R", "cmd"),
    "-w5s R cmd": ("-w5s", "R", "cmd"),
    "-nw 5s R cmd": ("-nw 5s", "R", "cmd"),
    "-nE75 R cmd": ("-nE75", "R", "cmd"),
    "-wn R cmd": ("-wn", "R", "cmd"),
    "R cmd -- -n": ("", "R", "cmd -- -n"),
    "R -- -n cmd": ("", "R", "-n cmd"),
    "R -- -- cmd": ("", "R", "-- cmd"),
    "R - -n": ("", "R", "- -n"),
    "- cmd": ("", "-", "cmd"),
    "-c 'a | b' R": ("-c 'a | b'", "R", ""),
    "R -c 'a | b' --ttl 1s": ("-c 'a | b' --ttl 1s", "R", ""),
    "--ttl -n R cmd": ("--ttl -n", "R", "cmd"),
    "'' cmd": ("", "", "cmd"),
    "-- cmd --all": ("", None, "cmd --all"),
    "-n": ("-n", None, ""),
}


@pytest.mark.parametrize("line", SPLITS)
def test_the_options_end_at_the_command(line: str) -> None:
    options, resource, words = SPLITS[line]
    found = split(shlex.split(line), VALUED)
    expected = (shlex.split(options), resource, shlex.split(words))
    assert (found.options, found.resource, found.command) == expected


@pytest.mark.parametrize("line", ["R --ttl", "R -nw", "--ttl"])
def test_an_option_may_lack_its_value(line: str) -> None:
    assert split(shlex.split(line), VALUED).is_value_missing


# The words before the cursor, the one at it, and where the command begins.
STARTS = [
    ("", "R", None),
    ("R", "", 1),
    ("R", "rs", 1),
    ("R", "--tt", None),
    ("R --ttl", "5", None),
    ("R --ttl 5s", "rsync", 3),
    ("R --", "-n", 2),
    ("R rsync", "-n", 1),
    ("-n R rsync -a", "x", 2),
    ("--", "x", None),
]


@pytest.mark.parametrize(("before", "word", "start"), STARTS)
def test_where_the_command_begins_for_completion(before: str, word: str, start: int | None) -> None:
    assert command.command_at(before.split(), word) == start


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("nightly echo -n hi", "hi"),
        ("nightly -- echo -n hi", "hi"),
        ("nightly --ttl 10s -w 5s echo -n --ttl 5s", "--ttl 5s"),
        ("--ttl=10s nightly printf %s. --json --help -- -q", "--json.--help.--.-q."),
        ("nightly env -u HOME echo -v", "-v\n"),
        ("nightly sh -c 'echo $1' -n -w", "-w\n"),
    ],
)
def test_the_options_of_a_command_reach_it(words: str, output: str, run: Runner) -> None:
    done = run(*shlex.split(words))
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


MISUSES = {
    "": "RESOURCE is missing",
    "-- touch made": "RESOURCE is missing before '--'",
    "-n --ttl 5s -- touch made": "RESOURCE is missing before '--'",
    "--nonesuch -- touch made": "no such option --nonesuch",
    "-c -- touch made": "two commands",
    "R": "the command is missing",
    "R --": "the command is missing",
    "R -n": "the command is missing",
    "R --ttl": "requires an argument",
    "R --nonesuch touch made": "no such option --nonesuch",
    "R --ttl touch made": "no duration",
    "R -c true touch made": "two commands: that of -c, and 'touch'",
    "R -c true -- touch made": "two commands",
}


@pytest.mark.parametrize("line", MISUSES)
def test_a_misuse_runs_nothing(line: str, shell: Shell) -> None:
    assert MISUSES[line] in shell.complaint(64, "run", *shlex.split(line))
    assert not (shell.home / "made").exists()


def test_help_before_the_command_is_that_of_run(shell: Shell) -> None:
    """Behind the first word of the command, the command gets it."""
    for line in ("--help", "R --help", "--help -- touch made"):
        assert shell.answer("run", *line.split()).startswith("Usage: quorlock run ")
