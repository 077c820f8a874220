"""Durations as they are written in a shell: `30s`, `2h`, `1m30s`, `500ms`, or seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from quorlock._settings.durations import seconds_of

if TYPE_CHECKING:
    from typing import Any


def duration(text: str | float) -> float:
    """Return the seconds, for `click.option(type=duration)`; a default may be a number.

    Callers check whether the duration is too short or too long.
    """
    text = str(text).strip()
    seconds = seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is no duration: 30s, 2h, 1m30s, 500ms, or seconds.")
    return seconds


def as_duration(seconds: float) -> str:
    """Return seconds as a duration in a shell: `1m30s`, `500ms`."""
    whole, parts = round(seconds * 1000), ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, whole = divmod(whole, size)
        parts += f"{count}{unit}" if count else ""
    return parts or "0s"


class Seconds(click.FloatRange):
    """A float in a range. click's FloatRange accepts `nan`, which no comparison excludes."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number, and refuse `nan`."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return number
