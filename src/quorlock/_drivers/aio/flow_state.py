"""The states of a running flow of the asyncio driver, and the transitions between them.

A flow runs in one callback of the event loop until it has to wait. An event ends the wait:

QUEUED      the flow gets a slot, or the deadline of its acquire
CONNECTING  connections are ready or none is expected, or the deadline of its send
RECEIVING   a reply that decides, or the deadline of the replies
SLEEPING    the end of the sleep
WAITING     replies or calls, news of its member, or the deadline of the wait
DONE        none: the flow ended, was cancelled, or has committed and gets no more replies

Until then the flow keeps the effect that it waits with: one that sends (QUEUED, CONNECTING), a
Receive, a Sleep or a Wait. A timer belongs to the state that set it.
"""

from __future__ import annotations

from enum import Enum


class FlowState(Enum):
    """The states: the event that a flow waits for."""

    RUNNING = "running"  # for nothing
    QUEUED = "queued"
    CONNECTING = "connecting"
    RECEIVING = "receiving"
    SLEEPING = "sleeping"
    WAITING = "waiting"
    DONE = "done"


# Read for every reply (see _core/tally.py).
RUNNING, QUEUED, CONNECTING, RECEIVING, SLEEPING, WAITING, DONE = FlowState

# A cancelled flow is done in any state, also if it has committed.
TRANSITIONS: dict[FlowState, frozenset[FlowState]] = {
    RUNNING: frozenset({QUEUED, CONNECTING, RECEIVING, SLEEPING, WAITING, DONE}),
    QUEUED: frozenset({RUNNING, CONNECTING, DONE}),
    CONNECTING: frozenset({RUNNING, DONE}),
    RECEIVING: frozenset({RUNNING, DONE}),
    SLEEPING: frozenset({RUNNING, DONE}),
    WAITING: frozenset({RUNNING, DONE}),
    DONE: frozenset({DONE}),
}
