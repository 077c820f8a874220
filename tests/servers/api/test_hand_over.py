"""A lease goes to another Redlock or process, by ticket; and the calls by bare token."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import quorlock.asyncio as aio
from quorlock import ConfigError, LeaseLost, QuorumUnreachable, Ticket
from quorlock.testing.servers import Servers
from tests.harness.support.wait import until_async
from tests.servers.api.faces import (
    Face,
    holders,
    left_over,
    raises,
    steal,
    until_over,
    wipe,
)

ADOPTER = Path(__file__).with_name("adopter.py")


async def test_a_handed_over_lease_ends_here_and_lives_there(face: Face, nodes: Servers) -> None:
    """The lease is over for the giver, held on the nodes and held by the adopter, with one token
    throughout.
    """
    async with face.redlock(nodes.urls) as giver, face.redlock(nodes.urls) as taker:
        lease = await giver.lock("a", ttl=8).acquire()
        ticket = await lease.hand_over()
        assert not lease.held
        assert lease.valid_until == 0.0
        assert await giver.lock("a").locked()
        assert await lease.release() is False, "it is not ours to release any more"
        assert await giver.lock("a").locked()
        adopted = await taker.adopt(ticket)
        assert adopted.held
        assert (adopted.resource, adopted.token, adopted.ttl) == ("a", lease.token, 8.0)
        assert 7 < adopted.validity < 8
        assert sum(vote.vote == "granted" for vote in adopted.votes) >= 3
        assert await giver.lock("a").try_acquire() is None
        assert await adopted.release() is True
    assert left_over(nodes) == {}


async def test_hand_over_and_adopt_in_one_redlock(face: Face, nodes: Servers) -> None:
    """A process may adopt its own ticket; the old object remains ended."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        again = await redlock.adopt(await lease.hand_over())
        assert again.held
        assert not lease.held
        assert await lease.release() is False
        assert again.held
        assert await again.release() is True
    assert left_over(nodes) == {}


@pytest.mark.parametrize("there", ["blocking", "asyncio"])
async def test_a_lease_goes_to_another_process(face: Face, nodes: Servers, there: str) -> None:
    """The ticket travels as JSON over a pipe to either API; the other process extends and releases
    it.
    """
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        ticket = await lease.hand_over()
        process = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, str(ADOPTER), there, json.dumps(nodes.urls)],
            input=ticket.to_json(),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert process.returncode == 0, process.stderr
        assert json.loads(process.stdout) == {
            "token": lease.token,
            "held": True,
            "ttl": 20.0,
            "released": True,
        }
        assert not await redlock.lock("a").locked()
    assert left_over(nodes) == {}


async def test_a_ticket_is_text_and_back(face: Face, nodes: Servers) -> None:
    """`to_json` and `from_json` are each other's reverse; the repr keeps the token to itself."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock('schloß "1"').acquire()
        ticket = await lease.hand_over()
        assert Ticket.from_json(ticket.to_json()) == ticket
        assert ticket.token == lease.token
        assert lease.token[:7] not in repr(ticket)
        assert await redlock.release(ticket.resource, ticket.token) is True


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{}",
            "[]",
            "null",
            "3",
            '{"resource": "a"}',
            '{"resource":"a","token":"t","ttl":"x"}',
        ),
        pytest.param('{"resource":"a","token":"t","ttl":1' + 400 * "0" + "}", id="a huge ttl"),
        pytest.param(100_000 * "[", id="too deep"),
    ],
)
def test_what_is_no_ticket_is_refused(text: str) -> None:
    """ConfigError, which does not show the text: it may hold a token."""
    with pytest.raises(ConfigError, match=r"ticket=.*not shown"):
        Ticket.from_json(text)


async def test_what_is_no_ticket_cannot_be_adopted(face: Face, nodes: Servers) -> None:
    """Wrong types, tokens and times: ConfigError before anything is sent."""
    async with face.redlock(nodes.urls) as redlock:
        for wrong in (None, "text", {"resource": "a"}):
            await raises(ConfigError, redlock.adopt(wrong))  # type: ignore[arg-type]
        for ticket in (
            Ticket("", "token", 1.0),
            Ticket("a", "", 1.0),
            Ticket("a", "tökén", 1.0),
            Ticket("a", "token", 0.0),
            Ticket("a", "token", 31.0),
            Ticket("a", "token", float("nan")),
            Ticket("a", "token", 1.0, in_doubt=(("run_id", 1e305),)),
            Ticket("a", "token", 1.0, in_doubt=(("run_id", 10**400),)),
        ):
            error = await raises(ConfigError, redlock.adopt(ticket))
            assert "tökén" not in str(error)


ODD_FIELDS: list[tuple[str, Any]] = [
    *(("fence", odd) for odd in ("7", True, 7.0, -7)),
    *(("permit", odd) for odd in ("2", False, 2.0, -2)),
    *(("shared", odd) for odd in (None, 0, 1, "no")),
]


@pytest.mark.parametrize(("field", "odd"), ODD_FIELDS)
async def test_odd_fields_of_a_ticket_become_no_facts_of_a_lease(
    field: str, odd: Any, face: Face, nodes: Servers
) -> None:
    """No node looks at them, so the lease would have them; the ticket itself stays good."""
    async with face.redlock(nodes.urls) as redlock:
        ticket = await (await redlock.lock("a").acquire()).hand_over()
        error = await raises(ConfigError, redlock.adopt(ticket.__replace__(**{field: odd})))
        assert error.argument == f"ticket.{field}"
        with pytest.raises(ConfigError, match="give the text"):
            Ticket.from_json(ticket.__replace__(**{field: odd}).to_json())
        await (await redlock.adopt(ticket)).release()


async def test_a_ticket_is_adopted_once(face: Face, nodes: Servers) -> None:
    """The ticket is refused while the lease is held here, and worthless after its release."""
    async with face.redlock(nodes.urls) as redlock:
        ticket = await (await redlock.lock("a").acquire()).hand_over()
        lease = await redlock.adopt(ticket)
        error = await raises(ConfigError, redlock.adopt(ticket))
        assert "held here already" in str(error)
        assert lease.token[:7] not in str(error)
        assert lease.held
        assert await lease.release() is True
        assert (await raises(LeaseLost, redlock.adopt(ticket))).reason == "gone"
    assert left_over(nodes) == {}


async def test_of_many_that_adopt_one_ticket_at_once_one_gets_it(
    face: Face, nodes: Servers
) -> None:
    """Threads (tasks) of one Redlock race for a ticket: one lease, the others are refused."""
    async with face.redlock(nodes.urls) as redlock:
        for turn in range(5):
            ticket = await (await redlock.lock(f"a{turn}").acquire()).hand_over()

            async def take(_: int, ticket: Ticket = ticket) -> aio.Lease:
                return await redlock.adopt(ticket)

            got = await face.crowd(4, take)
            leases = [lease for lease in got if not isinstance(lease, BaseException)]
            assert len(leases) == 1
            assert all(isinstance(e, ConfigError) for e in got if isinstance(e, BaseException))
            assert leases[0].held
            assert await leases[0].release() is True
    assert left_over(nodes) == {}


async def test_what_ran_out_on_its_way_cannot_be_adopted(face: Face, nodes: Servers) -> None:
    """LeaseLost, `expired`; no key is created."""
    async with face.redlock(nodes.urls) as redlock:
        ticket = await (await redlock.lock("a", ttl=0.8).acquire()).hand_over()
        await asyncio.sleep(ticket.ttl + 0.01)
        lost = await raises(LeaseLost, redlock.adopt(ticket))
        assert (lost.reason, lost.lease, lost.resource) == ("gone", None, "a")
    assert left_over(nodes) == {}


async def test_what_another_has_meanwhile_cannot_be_adopted(face: Face, nodes: Servers) -> None:
    """LeaseLost, `taken`: the other client's keys are not touched, and our leftovers are
    released.
    """
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await until_async(lambda: None not in holders(nodes, "a"))
        ticket = await lease.hand_over()
        wipe(nodes[:3], "a")
        steal(nodes[:3], "a")
        assert (await raises(LeaseLost, redlock.adopt(ticket))).reason == "taken"
        assert await until_async(lambda: holders(nodes, "a") == [b"theirs"] * 3 + [None] * 2)


async def test_what_is_not_held_cannot_be_handed_over(face: Face, nodes: Servers) -> None:
    """LeaseLost for what ran out, was released or handed over before."""
    async with face.redlock(nodes.urls, node_timeout=0.03) as redlock:
        expired = await redlock.lock("a", ttl=0.1).acquire()
        released, moved = [await redlock.lock(name).acquire() for name in ("b", "c")]
        await released.release()
        await moved.hand_over()
        await until_over(expired)
        for lease in (expired, released, moved):
            await raises(LeaseLost, lease.hand_over())


async def test_closing_does_not_release_what_was_handed_over(face: Face, nodes: Servers) -> None:
    """The giver's end is not the lease's: it lives on until it is adopted or runs out."""
    async with face.redlock(nodes.urls) as giver:
        lease = await giver.lock("a").acquire()
        ticket = await lease.hand_over()
    del lease
    assert holders(nodes, "a").count(ticket.token.encode()) >= 3
    async with face.redlock(nodes.urls) as taker:
        adopted = await taker.adopt(ticket)
    assert not adopted.held
    assert left_over(nodes) == {}, "closing gives back what was adopted"


async def test_a_name_of_bytes_goes_over_too(face: Face, nodes: Servers) -> None:
    """A resource that is not UTF-8 is handed over, as JSON too, and adopted under its own key."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock(b"\xff\x01").acquire()
        ticket = Ticket.from_json((await lease.hand_over()).to_json())
        adopted = await redlock.adopt(ticket)
        assert adopted.held
        assert await adopted.release() is True
    assert left_over(nodes) == {}


# --- by bare token --------------------------------------------------------------------------------


async def test_by_bare_token_another_process_extends_and_releases(
    face: Face, nodes: Servers
) -> None:
    """True when a quorum did; the holder's own handle is not prolonged by it."""
    async with face.redlock(nodes.urls) as holder, face.redlock(nodes.urls) as other:
        lease = await holder.lock("a", ttl=5).acquire()
        before = lease.valid_until
        assert await other.extend("a", lease.token, ttl=20) is True
        assert lease.valid_until == before
        assert sum(node.execute("PTTL", "a") > 19_000 for node in nodes) >= 3
        assert await other.extend("a", lease.token) is True
        assert await other.release("a", lease.token) is True
        assert await other.release("a", lease.token) is False
        assert await lease.release() is False


async def test_by_bare_token_no_lease_is_made(face: Face, nodes: Servers) -> None:
    """A Redlock that extended by bare token does not hold it: closing it gives nothing back."""
    async with face.redlock(nodes.urls) as holder:
        lease = await holder.lock("a").acquire()
        async with face.redlock(nodes.urls) as other:
            assert await other.extend("a", lease.token) is True
        assert lease.held
        assert await lease.release() is True
    assert left_over(nodes) == {}


async def test_a_release_by_bare_token_ends_the_lease_here(face: Face, nodes: Servers) -> None:
    """A holder that releases its own lease by token through the same Redlock no longer holds it."""
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a").acquire()
        assert await redlock.release("a", lease.token) is True
        assert not lease.held
        assert await lease.release() is False


async def test_a_wrong_token_does_nothing(face: Face, nodes: Servers) -> None:
    """False, and the lease stays held; arguments of the wrong type are ConfigErrors without a
    token.
    """
    async with face.redlock(nodes.urls) as redlock:
        lease = await redlock.lock("a", ttl=20).acquire()
        for token in ("wrong", lease.token[:-1], lease.token + "0", lease.token.upper() + "x"):
            assert await redlock.release("a", token) is False
            assert await redlock.extend("a", token, ttl=25) is False
        assert await redlock.extend("b", lease.token) is False
        assert await redlock.release("b", lease.token) is False
        assert all(node.execute("PTTL", "a") <= 20_000 for node in nodes)
        secret = lease.token + "é"
        for wrong in ("", secret, lease.token.encode(), None):
            for verb in (redlock.release, redlock.extend):
                error = await raises(ConfigError, verb("a", wrong))  # type: ignore[arg-type]
                assert lease.token[:7] not in str(error)
        assert lease.held
        assert await lease.release() is True
    assert left_over(nodes) == {}


async def test_by_bare_token_without_a_quorum(face: Face, mortal_nodes: Servers) -> None:
    """Neither True nor False can be said: QuorumUnreachable, naming the nodes."""
    async with face.redlock(mortal_nodes.urls, connect_timeout=0.2) as redlock:
        lease = await redlock.lock("a").acquire()
        for node in mortal_nodes[:3]:
            node.kill()
        for verb in (redlock.extend("a", lease.token), redlock.release("a", lease.token)):
            error = await raises(QuorumUnreachable, verb)
            down = {vote.node for vote in error.votes if not vote.answered}
            assert {node.path for node in mortal_nodes[:3]} <= down
            assert lease.token[:7] not in str(error)
