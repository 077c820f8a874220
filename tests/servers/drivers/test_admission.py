"""The order in which connections are admitted does not decide which node is named."""

from __future__ import annotations

import pytest

from quorlock._core.agreement import own_agreement
from quorlock._core.time import NS_PER_S
from quorlock._drivers.node_states import NodeStates
from quorlock._nodes.node import Node
from quorlock._protocol.handshake import NodeRejected, ServerInfo
from quorlock._protocol.peer import Peer
from quorlock.errors import VoteCode
from tests.harness.support.script import policy_of


class Connection(Peer):
    """A connection to a server that is up."""

    def is_closed_by_peer(self) -> bool:
        return False

    def supersede(self, text: str) -> None:
        self.lost = True


def test_the_first_of_a_quorum_is_not_the_stray_one() -> None:
    """Two of three nodes belong to one set. The third is admitted while the first of them is: it is
    read again, not refused for good.
    """
    policy = policy_of(3)
    node_states = NodeStates(tuple(Node(name) for name in "abc"), policy)
    text = own_agreement(policy).text
    infos = [
        ServerInfo(f"run-{index}", "9.0", 100, b"", f"{text} set={name}".encode())
        for index, name in enumerate(("new", "new", "old"))
    ]
    connections = [Connection(state, None, f"run-{state.index}") for state in node_states.all]

    def read(index: int) -> None:
        node_states.admission(node_states.all[index]).consider(infos[index])

    def admit(index: int) -> None:
        admission = node_states.admission(node_states.all[index])
        admission.admit(infos[index], 0, connections[index])

    read(0)
    read(2)
    admit(2)
    with pytest.raises(NodeRejected) as caught:
        admit(0)
    assert caught.value.code is VoteCode.NOT_ADMITTED
    node_states.raise_config_errors()
    for index in (1, 0):
        read(index)
        admit(index)
    assert [state.misconfigured is not None for state in node_states.all] == [False, False, True]
    assert connections[2].lost


class ClosedConnection(Connection):
    """A connection that its server has closed, and whose owner has not read that."""

    def is_closed_by_peer(self) -> bool:
        return True


def test_a_server_with_unread_connections_lived_beside_the_next_one() -> None:
    """The last reply of a server counts, though the owner of the connection sleeps."""
    policy = policy_of(1)
    state = NodeStates((Node("a"),), policy).all[0]
    first = ClosedConnection(state, None, "first")
    state.on_connected(ServerInfo("first", "9.0", 5_000, b"", b""), 0, first)
    first.alive_at = 50 * NS_PER_S
    other = Connection(state, None, "other")
    state.on_connected(ServerInfo("other", "9.0", 1_000, b"", b""), 60 * NS_PER_S, other)
    assert first.lost
    assert other.quarantine is not None
    assert other.quarantine.is_lasting, other.quarantine
