"""`python -m quorlock`: reads the command line and hands over. Imports what a command needs when
it is asked for, and nothing before.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The numbers of sysexits.h, which `os` has on some systems only.
EX_USAGE = 64
EX_UNAVAILABLE = 69
EX_INTERRUPTED = 130  # what a shell makes of SIGINT

_DEMO = """\
Worker processes add to one shared counter file that is not atomic, each addition under the lock,
while nodes are killed, come back empty and are stopped. An outside witness judges.
Exit status: 0 the witness is content (with --no-lock: it saw additions being lost), 1 it is not,
64 wrong usage, 69 something is missing, 130 interrupted."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors end with the status that sysexits.h gives them."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how it is used."""
        self.print_usage(sys.stderr)
        self.exit(EX_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        return _demo(chosen)
    except KeyboardInterrupt:
        return EX_INTERRUPTED


def _parser() -> Parser:
    parser = Parser(
        prog="python -m quorlock", description="quorlock, the distributed lock for Python"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="see it work on local servers that fail, in seconds",
        description=_DEMO,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = demo.add_argument
    add("--no-lock", action="store_true", help="the contrast: the same work without the lock")
    add("--seconds", type=_between(float, 5, 600), metavar="S", help="how long (10; no lock: 5)")
    add("--workers", type=_between(int, 1, 64), metavar="N", default=8, help="processes (8)")
    add("--nodes", type=_between(int, 1, 9), metavar="N", default=5, help="servers (5)")
    add("--no-kill", action="store_true", help="do not kill and restart nodes")
    add("--no-stop", action="store_true", help="do not stop and continue a node")
    return parser


def _between(kind: type[int] | type[float], least: int, most: int) -> Callable[[str], int | float]:
    def number(text: str) -> int | float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    # argparse names it when the text is no number at all: "invalid number value: 'x'".
    return number


def _demo(chosen: argparse.Namespace) -> int:
    from quorlock.demo.scenario import Settings
    from quorlock.testing.servers import ServersUnavailable

    settings = Settings.of(
        locking=not chosen.no_lock,
        seconds=chosen.seconds,
        workers=chosen.workers,
        nodes=chosen.nodes,
        killing=not chosen.no_kill,
        stopping=not chosen.no_stop,
    )
    try:
        from quorlock.demo.run import run

        return run(settings)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        return _unavailable("rich is not installed; run: pip install 'quorlock[demo]'")
    except ServersUnavailable as error:
        return _unavailable(str(error))


def _unavailable(why: str) -> int:
    sys.stderr.write(f"quorlock demo: {why}\n")
    return EX_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
