"""The options of the command line that name the nodes."""

from __future__ import annotations

from typing import NamedTuple


class NodeOptions(NamedTuple):
    """The options as they were given; None: not given."""

    nodes: str | None = None
    config: str | None = None
    password_fd: int | None = None
    max_ttl: float | None = None
