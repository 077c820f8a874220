"""Durations as they are written in a shell: `30s`, `2h`, `1m30s`, `500ms`, or seconds."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = rf"({_NUMBER})(ms|s|m|h|d)"


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration; None if the text is none."""
    text = text.strip()
    seconds = math.inf
    if re.fullmatch(_NUMBER, text):
        seconds = float(text)
    elif re.fullmatch(f"(?:{_PART})+", text):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, text))
    return seconds if seconds < math.inf else None
