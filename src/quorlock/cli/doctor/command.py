"""`quorlock doctor`: are these nodes fit for Redlock?"""

from __future__ import annotations

import os

import click

from quorlock.cli.nodes import Source, with_nodes


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON: docs/doctor.schema.json.")
@click.option("--strict", is_flag=True, help="Exit 1 for a warning too.")
@with_nodes
def command(source: Source, *, as_json: bool, strict: bool) -> int:
    """See whether these nodes are fit for locks: what was found, why it matters, the fix.

    What could not be looked at, for lack of rights, is said, and is neither error nor warning.
    Writes keys of its own (PREFIXquorlock-doctor:..., quorlock:doctor:...), which it removes.
    docs/doctor.md has every check. Exit status: 1 if there is an error.
    """
    from quorlock.cli.doctor.asker import find_out
    from quorlock.cli.doctor.findings import findings, worst
    from quorlock.cli.doctor.report import as_facts, as_text
    from quorlock.cli.doctor.together import CHECKS

    settings = source.settings()
    settings.redlock().close()  # says what is wrong with them
    found = findings(CHECKS, find_out(settings))
    if as_json:
        import json

        click.echo(json.dumps(as_facts(found)))
    else:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        click.echo(as_text(found), color=False if plain else None)
    return int(worst(found) in (("error", "warning") if strict else ("error",)))
