"""Command lines that strangers typed, each with its exit status and the first words that it prints.

They run in one order on five nodes: a line may depend on those before it.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import NamedTuple

from tests.servers.cli.command import COMMAND, Shell


class Line(NamedTuple):
    """A command line of a shell, its exit status, and words of stdout and stderr."""

    typed: str
    status: int
    words: str
    hint: str = ""


LINES = (
    Line("quorlock", 0, "Usage: quorlock [OPTIONS]"),
    Line("quorlock -h", 0, "Usage: quorlock [OPTIONS]"),
    Line("quorlock --help", 0, "Usage: quorlock [OPTIONS]"),
    Line("quorlock help", 0, "Usage: quorlock [OPTIONS]"),
    Line("quorlock help run", 0, "Usage: quorlock run"),
    Line("quorlock run -h", 0, "Usage: quorlock run"),
    Line("quorlock help nodes add", 0, "Usage: quorlock nodes add"),
    Line("quorlock help environment", 0, "Environment variables"),
    Line("quorlock help exit-codes", 0, "Exit statuses"),
    Line("quorlock help tea", 64, "no such command 'tea'", "'quorlock help' lists"),
    Line("quorlock version", 0, "quorlock, version"),
    Line("quorlock --version", 0, "quorlock, version"),
    Line("quorlock lock nightly", 64, "no such command 'lock'", "did you mean 'run' or 'acquire'?"),
    Line("quorlock unlock nightly", 64, "no such command 'unlock'", "did you mean 'release'?"),
    Line("quorlock ls", 64, "no such command 'ls'", "did you mean 'status'?"),
    Line("quorlock list", 64, "no such command 'list'", "did you mean 'status'?"),
    Line("quorlock staus", 64, "no such command 'staus'", "did you mean 'status'?"),
    Line("quorlock --verbose", 64, "no such option --verbose", "did you mean --version?"),
    Line("quorlock run nightly echo -n hi", 0, "hi"),
    Line("quorlock run nightly -- echo hi", 0, "hi"),
    Line("quorlock run nightly -c 'echo $QUORLOCK_RESOURCE'", 0, "nightly"),
    Line("quorlock run nightly -- sh -c 'exit 3'", 3, ""),
    Line("quorlock run nightly -- no-such-program", 127, "no-such-program"),
    Line("quorlock run nightly -- /etc/passwd", 126, "/etc/passwd"),
    Line("quorlock run -- ./backup --all", 64, "RESOURCE is missing before '--'", "see"),
    Line("quorlock run", 64, "RESOURCE is missing", "see 'quorlock run --help'"),
    Line("quorlock run nightly", 64, "the command is missing", "see"),
    Line("quorlock run nightly -c x -- y", 64, "two commands", "see"),
    Line("quorlock run nightly -n -w 5s -- true", 64, "--nonblock and --wait exclude", "see"),
    Line("quorlock run nightly --timeout 1s -- echo hi", 0, "hi"),
    Line(
        "quorlock run nightly --ttl 1h -- true", 64, "--ttl 1h: longer than max_ttl (30s)", "give"
    ),
    Line("quorlock run nightly --ttl 10 -- echo hi", 0, "hi"),
    Line("quorlock run nightly --ttl abc -- true", 64, "--ttl: 'abc' is no duration", "see"),
    Line("quorlock run nightly --ttl 1ms -- true", 64, "--ttl 1ms: shorter than 150ms", "give at"),
    Line("quorlock run nightly --ttl 0 -- true", 64, "--ttl 0s: give seconds above 0"),
    Line(
        "quorlock run nightly --max-hold 2s -- true", 64, "shorter than the ttl (10s)", "give --ttl"
    ),
    Line("quorlock run nightly --max-hold 2s --ttl 2s -- echo hi", 0, "hi"),
    Line("quorlock run nightly --min-hold 1h --max-hold 20s -- true", 64, "--min-hold is longer"),
    Line("quorlock run nightly --fencing -c 'test $QUORLOCK_FENCE'", 0, ""),
    Line("quorlock run a -- quorlock run b -- echo hi", 0, "hi"),
    Line(
        "quorlock run nightly --nodes localhost:6379 -- true", 78, "localhost:6379 is no URL", "did"
    ),
    Line("quorlock run nightly --nodes http://a -- true", 78, "http"),
    Line("quorlock run nightly --nodes '' -- true", 78, "give at least one node"),
    Line("quorlock run nightly --config none.toml -- true", 78, "none.toml: No such file"),
    Line("quorlock acquire", 64, "RESOURCE is missing", "see"),
    Line("quorlock acquire ''", 64, "RESOURCE: give a name that is not empty"),
    Line("quorlock acquire quorlock:x", 64, "keys that begin with 'quorlock:'"),
    # Held until the last line about it, on a busy machine too.
    Line("quorlock acquire a --ttl 30s --json", 0, '{"resource": "a", "token": "'),
    Line("quorlock acquire b --format shell", 0, "export QUORLOCK_RESOURCE=b"),
    Line("quorlock acquire a --timeout 0", 75, "'a' is held by"),
    Line("quorlock run a -n -- true", 75, "'a' is held by"),
    Line("quorlock run a --on-busy skip -- true", 0, ""),
    Line("quorlock run a -n -E 9 -- true", 9, "'a' is held by"),
    Line("quorlock release a", 64, "--token is missing", "give --token, or set QUORLOCK_TOKEN"),
    Line("quorlock release a --token x", 79, "'a' was not held by this token"),
    Line("quorlock extend a --token x", 79, "'a' was not held by this token"),
    Line("quorlock extend a", 64, "--token is missing", "give --token, or set QUORLOCK_TOKEN"),
    Line("quorlock status", 0, "'a': held by"),
    Line("quorlock status a free", 0, "'a': held by"),
    Line("quorlock status a --exit-code", 75, "'a': held by"),
    Line("quorlock status free --exit-code", 0, "'free': free"),
    Line("quorlock status a --match b", 64, "not both", "see"),
    Line("quorlock status --match 'z*'", 0, "nothing matches 'z*'"),
    Line("quorlock status --limit 0", 64, "--limit: 0 is not in the range", "see"),
    Line("quorlock status --json", 0, '{"resources": [{"resource": "a"'),
    Line("quorlock break a", 75, "'a': held by", "to release it: quorlock break --yes a"),
    Line("quorlock break a --yes", 0, "'a': held by"),
    Line("quorlock break a", 0, "'a': free"),
    Line("quorlock config", 0, "node "),
    Line("quorlock config --max-ttl 1h", 0, "--max-ttl"),
    Line("quorlock nodes", 64, "Usage: quorlock nodes"),
    Line("quorlock nodes config", 0, "restart_guard=uptime"),
    Line("quorlock nodes guard tea", 64, "'tea': give uptime, marker or none"),
    Line("quorlock top --once", 0, "quorlock top"),
    Line("quorlock completion", 64, "SHELL is missing", "see"),
    Line("quorlock completion tcsh", 64, "SHELL: 'tcsh' is not one of", "see"),
    Line("quorlock completion bash", 0, "_quorlock() {"),
    Line("quorlock local up --count 10", 64, "--count: 10 is not in the range", "see"),
    Line("quorlock local status", 69, "there are no local nodes"),
)


def typed(line: Line, shell: Shell) -> subprocess.CompletedProcess[str]:
    """Run a line in sh, with stderr in stdout as on a terminal."""
    return subprocess.run(
        ["sh", "-c", f'quorlock() {{ {" ".join(COMMAND)} "$@"; }}\n{line.typed} 2>&1'],
        env=shell.environment(),
        cwd=shell.home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_no_line_surprises(installed: Shell) -> None:
    """A wrong line has the form `quorlock CMD: ...`; no line uses words of the Python API."""
    del installed.variables["QUORLOCK_CONFIG"]  # a stranger has the defaults
    # A home folder below pytest's may be too long for the sockets of `quorlock local`.
    installed.variables["XDG_STATE_HOME"] = tempfile.gettempdir()
    wrong: list[str] = []
    for line in LINES:
        done = typed(line, installed)
        hint = f"\nhint: {line.hint}" if line.hint else ""
        is_expected = (
            done.returncode == line.status
            and line.words in done.stdout
            and hint in done.stdout
            and "Traceback" not in done.stdout
            and not any(
                word in done.stdout for word in ("ttl=", "max_hold=", "renew=", "timedelta")
            )
        )
        if not is_expected:
            wrong.append(f"$ {line.typed}\n{done.stdout[:500]}=> {done.returncode}")
    assert not wrong, "\n".join(wrong)
