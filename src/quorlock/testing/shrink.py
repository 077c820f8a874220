"""Cuts a plan down to what a violation needs: fewer faults, jobs, extensions, clients.

Takes one thing away at a time, for as long as a promise of the same rule is still broken.  Every
client has chance of its own, so taking one away leaves the others as they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorlock.testing.plan import Job, Plan

# A world runs in a few ms; so many tries take some seconds.
TRIES_MAX = 2_000


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The smallest plan that still fails, as far as taking away single things leads."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(plan):
            tries += 1
            if tries > TRIES_MAX:
                return plan
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Every plan with one thing less, the large things first."""
    for client, career in enumerate(plan.careers):
        if career:
            yield _with_career(plan, client, ())
    for index in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    for client, career in enumerate(plan.careers):
        for shorter in _shorter(career):
            yield _with_career(plan, client, shorter)
    if plan.weather.tail:
        yield replace(plan, weather=replace(plan.weather, tail=0))
    if any(bundles > 1 for bundles in plan.bundles):
        yield replace(plan, bundles=(1,) * len(plan.bundles))


def _shorter(career: tuple[Job, ...]) -> Iterator[tuple[Job, ...]]:
    for index in range(len(career)):
        yield career[:index] + career[index + 1 :]
    for index, job in enumerate(career):
        for simpler in _simpler(job):
            yield (*career[:index], simpler, *career[index + 1 :])


def _with_career(plan: Plan, client: int, career: tuple[Job, ...]) -> Plan:
    careers = (*plan.careers[:client], career, *plan.careers[client + 1 :])
    return replace(plan, careers=careers)


def _simpler(job: Job) -> Iterator[Job]:
    for index in range(len(job.extensions)):
        yield replace(job, extensions=job.extensions[:index] + job.extensions[index + 1 :])
    if job.cancel_after is not None:
        yield replace(job, cancel_after=None)
    if job.ending != "release":
        yield replace(job, ending="release")
