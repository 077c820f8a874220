"""The observer of a wait whose flow acts on every reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorlock._core.rounds import NodeReply


class EveryReply:
    """Has its flow act on every reply."""

    def on_reply(self, reply: NodeReply) -> bool:
        del reply
        return True


EVERY = EveryReply()
