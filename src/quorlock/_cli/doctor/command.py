"""`quorlock doctor`: the options, the output, and the exit status."""

from __future__ import annotations

import click

from quorlock._cli.durations import duration
from quorlock._cli.nodes import Source, with_nodes
from quorlock._cli.text_layout import colour


@click.command("doctor")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: see docs/reference/doctor.schema.json."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for a warning too.")
@click.option(
    "--wait",
    type=duration,
    help="Exit with 0 as soon as a quorum votes. Report if none does within this time.",
)
@with_nodes
def command(source: Source, *, as_json: bool, strict: bool, wait: float | None) -> int:
    """Check whether your nodes are ready for locks: findings, reasons and fixes.

    A check that needs a missing permission is reported as not done. Writes only keys named
    PREFIXquorlock-doctor:..., quorlock:doctor:... and quorlock:queue:..., and removes them.
    docs/reference/doctor.md describes every check. Exit status: 1 if there is an error.
    """
    from quorlock._cli.doctor.findings import findings, worst
    from quorlock._cli.doctor.fleet_checks import CHECKS
    from quorlock._cli.doctor.probe import find_out
    from quorlock._cli.doctor.report import as_facts, as_text
    from quorlock._cli.doctor.waiting import await_quorum

    settings = source.settings()
    settings.redlock().close()  # raises if they are invalid
    if wait is not None and await_quorum(settings, wait):
        return 0
    facts = find_out(settings)
    found = findings(CHECKS, facts)
    if as_json:
        import json

        click.echo(json.dumps(as_facts(found, facts)))
    else:
        click.echo(as_text(found), color=colour())
    return int(worst(found) in (("error", "warning") if strict else ("error",)))
