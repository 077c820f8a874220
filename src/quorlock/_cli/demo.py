"""`quorlock demo`: the options of the demo in `quorlock._demo`."""

from __future__ import annotations

import click

from quorlock._cli.durations import Seconds
from quorlock._cli.exit_status import EX_UNAVAILABLE, Failed


@click.command("demo")
@click.option(
    "--no-lock",
    is_flag=True,
    help="Run the same work without the lock, for comparison, and without faults.",
)
@click.option(
    "--seconds", type=Seconds(5, 600), help="Duration in seconds.  [default: 10; with --no-lock 5]"
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=8, help="Worker processes.  [default: 8]"
)
@click.option("--nodes", type=click.IntRange(1, 9), default=5, help="Servers.  [default: 5]")
@click.option(
    "--kill/--no-kill",
    default=True,
    help="Kill a minority of the nodes and restart one.  [default: kill]",
)
@click.option(
    "--stop/--no-stop", default=True, help="Stop a node and continue it.  [default: stop]"
)
def command(
    *, no_lock: bool, seconds: float | None, workers: int, nodes: int, kill: bool, stop: bool
) -> int:
    """Watch locks work on local servers that fail, in ten seconds.

    Worker processes add to one shared counter file that is not atomic, each addition under the
    lock, while nodes are killed, come back empty and are stopped. An independent log is checked.

    Exit status: 0 PASS (with --no-lock: additions were lost), 1 FAIL, 64 wrong usage, 69 something
    is missing, 130 interrupted.
    """
    from quorlock._demo.scenario import DemoSettings
    from quorlock.testing.servers import ServersUnavailable

    seconds = seconds or (5.0 if no_lock else 10.0)
    settings = DemoSettings(not no_lock, seconds, workers, nodes, kill, stop)
    try:
        from quorlock._demo.run import run

        return run(settings)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        why = "rich is not installed; run: pip install 'quorlock[demo]'"
    except ServersUnavailable as error:
        why = str(error)
    raise Failed(EX_UNAVAILABLE, why)
