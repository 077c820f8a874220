"""A lease is handed over while a release of its token is pending, in flight, or may become
pending.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import quorlock.asyncio as aio
from quorlock import ConfigError, Ticket, now
from quorlock._core.time import NS_PER_S
from quorlock.testing.servers import Server, Servers
from tests.harness.support.impostors import Proxy
from tests.harness.support.wait import until_async
from tests.servers.api.faces import Face, holders, raises, real

# Renewal looks first after a tenth of the ttl: it extends, and then restores keys in the same pass.
SETTINGS: dict[str, Any] = {"ttl": 2.0, "max_ttl": 6.0, "connect_timeout": 0.4}
# Long enough for a pass of renewal that has begun to reach every node.
SOON = 0.1


@dataclass
class Giver:
    """A Redlock that reaches the third of its nodes through a proxy."""

    redlock: aio.Redlock
    proxy: Proxy
    nodes: Servers

    @property
    def hidden(self) -> Server:
        """The node behind the proxy."""
        return self.nodes[2]

    @property
    def node_states(self) -> Any:
        return real(self.redlock)._session.driver.node_states

    def sent(self, token: str) -> list[bytes]:
        """The commands with this token that came to the proxy, and may be held there."""
        named = token.encode()
        return [command[0] for command in self.proxy.requests if named in command]


@asynccontextmanager
async def giver(face: Face, nodes: Servers) -> AsyncIterator[Giver]:
    with Proxy(nodes[2].url) as proxy:
        urls = [nodes[0].url, nodes[1].url, proxy.url]
        async with face.redlock(urls, **SETTINGS) as redlock:
            lock = redlock.lock("warm")
            for _ in range(2):
                await (await lock.acquire()).release()
            assert await until_async(lambda: proxy.requests[-1][0].startswith(b"EVAL"))
            yield Giver(redlock, proxy, nodes)


def run_id(node: Server) -> str:
    lines = node.execute("INFO", "server").decode().splitlines()
    return str(next(line for line in lines if line.startswith("run_id:")).split(":")[1])


async def unanswered(face: Face, given: Giver, **terms: Any) -> aio.Lease:
    """A lease whose acquire the hidden node has carried out, and not answered."""
    given.proxy.hold(requests=False)
    lease = await given.redlock.lock("x", **terms).acquire()
    token = lease.token.encode()
    assert await until_async(lambda: given.hidden.execute("GET", "x") == token)
    return lease


async def under_way(face: Face, given: Giver) -> aio.Lease:
    """A lease, held on two nodes, of which a release is on its way to the third."""
    lease = await unanswered(face, given)
    given.proxy.cut()
    given.hidden.execute("DEL", "x")  # so that the release finds nothing, and is sent again
    given.proxy.resume()
    if face.name == "blocking":  # sees the cut when it asks next
        await given.redlock.inspect("x")
    token, doubts = lease.token.encode(), given.node_states.all[2].pending_releases._doubts
    assert await until_async(lambda: len(given.sent(lease.token)) > 1)
    assert await until_async(lambda: not doubts.is_under_way(token)), "the first is answered"
    given.proxy.hold()
    while not doubts.is_under_way(token):  # one that had passed before is answered at once
        assert await until_async(lambda: doubts.is_under_way(token))
        await asyncio.sleep(SOON / 2)
    return lease


async def see_a_pass(lease: aio.Lease) -> None:
    """Wait until renewal has extended the lease, and restored its key where it is missing."""
    before = lease.valid_until
    assert await until_async(lambda: lease.valid_until > before)
    await asyncio.sleep(SOON)


async def see_no_release_after_a_cut(given: Giver, token: str) -> None:
    """Cut the connection that carries the acquire: its key stays on every node, until released."""
    given.proxy.cut()
    given.proxy.resume()
    sent = len(given.sent(token))
    assert (await given.redlock.inspect("x")).verdict == "held"
    await (await given.redlock.lock("warm").acquire()).release()
    assert token.encode() not in given.node_states.all[2].pending_releases
    assert len(given.sent(token)) == sent
    assert holders(given.nodes[:3], "x") == [token.encode()] * 3
    assert await given.redlock.release("x", token)


# --- A1: a release is under way -----------------------------------------------------------------


async def test_a_release_under_way_is_in_the_ticket_and_its_node_is_left_alone(
    face: Face, nodes: Servers
) -> None:
    """The adopter neither counts that node nor sets its key there; the release then hits nothing.

    Without the doubt the same adopter does set it.
    """
    async with giver(face, nodes) as given:
        lease = await under_way(face, given)
        ticket = await lease.hand_over()
        assert ticket.in_doubt == ((run_id(given.hidden), None),)
        urls = [node.url for node in nodes[:3]]
        async with face.redlock(urls, **SETTINGS) as taker:
            text = Ticket.from_json(ticket.to_json())
            adopted = await taker.adopt(text, renew=True)
            assert [vote.vote for vote in adopted.votes][2] != "granted"
            await see_a_pass(adopted)
            assert holders(nodes[:3], "x")[2] is None
            again = await adopted.hand_over()
            assert again.in_doubt == ticket.in_doubt, "it goes from hand to hand"
            credulous = await taker.adopt(again.__replace__(in_doubt=()), renew=True)
            token = ticket.token.encode()
            assert await until_async(lambda: given.hidden.execute("GET", "x") == token)
            given.proxy.resume()
            assert await until_async(lambda: given.hidden.execute("GET", "x") is None), (
                "the release that was under way"
            )
            await credulous.release()


async def test_the_doubt_ends_max_ttl_after_its_connection(face: Face, nodes: Servers) -> None:
    """Bytes of a lost connection may arrive for that long, and the ticket says so."""
    async with giver(face, nodes) as given:
        lease = await under_way(face, given)
        given.proxy.refuse()
        given.proxy.cut()
        pending_releases = given.node_states.all[2].pending_releases
        token = lease.token.encode()
        assert await until_async(lambda: not pending_releases._doubts.is_under_way(token))
        ticket = await lease.hand_over()
        ((named, seconds),) = ticket.in_doubt
        assert named == run_id(given.hidden)
        assert seconds is not None
        assert SETTINGS["max_ttl"] - 3 < seconds <= SETTINGS["max_ttl"]
        given.proxy.accept_again()


async def test_the_giver_who_takes_it_back_doubts_as_well(face: Face, nodes: Servers) -> None:
    """Both the ticket and the process's own records say so."""
    async with giver(face, nodes) as given:
        lease = await under_way(face, given)
        ticket = await lease.hand_over()
        sent = len(given.sent(ticket.token))
        back = await given.redlock.adopt(ticket.__replace__(in_doubt=()), renew=True)
        await see_a_pass(back)
        assert len(given.sent(ticket.token)) == sent
        ((named, _),) = (await back.hand_over()).in_doubt  # blocking hangs up after a while
        assert named == run_id(given.hidden)


async def test_a_lease_without_trouble_has_no_doubts(face: Face, nodes: Servers) -> None:
    async with giver(face, nodes) as given:
        lease = await given.redlock.lock("x").acquire()
        ticket = await lease.hand_over()
        assert ticket.in_doubt == ()
        assert json.loads(ticket.to_json())["in_doubt"] == []
        assert await given.redlock.release("x", ticket.token)


async def test_a_doubt_about_another_server_excludes_no_node(face: Face, nodes: Servers) -> None:
    """A node that was restarted gets nothing that was sent to the process before it."""
    async with giver(face, nodes) as given:
        ticket = await (await given.redlock.lock("x").acquire()).hand_over()
        reported = ticket.__replace__(in_doubt=(("f" * 40, None),))
        adopted = await given.redlock.adopt(reported)
        assert adopted.held
        assert (await adopted.hand_over()).in_doubt == reported.in_doubt
        assert await given.redlock.release("x", ticket.token)


# --- A2: a release may become pending ----------------------------------------------------------


@pytest.mark.parametrize("ages", [0, 1, 3], ids=lambda ages: f"after_{ages}_max_ttl")
async def test_an_acquire_that_is_carried_still_is_never_released(
    face: Face, nodes: Servers, ages: int
) -> None:
    """The node may hang for any time: when its connection breaks, no release of the adopter's key
    is pending.

    Other hand-overs, which discard old records, come long after max_ttl.
    """
    async with giver(face, nodes) as given:
        lease = await unanswered(face, given)
        ticket = await lease.hand_over()
        max_ttl = int(SETTINGS["max_ttl"] * NS_PER_S)
        for age in range(1, ages + 1):
            later = int(now() * NS_PER_S) + 2 * age * max_ttl
            given.node_states.suppress_releases(b"another", later)
        await see_no_release_after_a_cut(given, ticket.token)


async def test_an_adoption_that_fails_leaves_the_suppression(face: Face, nodes: Servers) -> None:
    """The ticket stays good for another process: nothing is released until an adoption has won."""
    async with giver(face, nodes) as given:
        lease = await unanswered(face, given)
        ticket = await lease.hand_over()
        await raises(ConfigError, given.redlock.adopt(ticket, renew=True, max_hold=0.001))
        await see_no_release_after_a_cut(given, ticket.token)


async def test_closing_sends_no_release_for_a_lease_that_moved_away(
    face: Face, nodes: Servers
) -> None:
    """Nor does the collection of its handle: both close or drop what carried its acquire."""
    async with giver(face, nodes) as given:
        lease = await unanswered(face, given)
        ticket = await lease.hand_over()
        del lease
    assert holders(nodes[:3], "x") == [ticket.token.encode()] * 3
    async with face.redlock([node.url for node in nodes[:3]], **SETTINGS) as taker:
        assert await (await taker.adopt(ticket)).release()


# --- restored keys and extensions beside pending releases ---------------------------------------


async def test_no_key_is_restored_on_a_node_with_a_pending_release(
    face: Face, nodes: Servers
) -> None:
    """The lease stays here: its key would be set, counted, and then deleted by us."""
    async with giver(face, nodes) as given:
        lease = await unanswered(face, given, renew=True)
        given.proxy.cut()
        given.hidden.execute("DEL", "x")
        given.proxy.resume()
        await see_a_pass(lease)
        sets = [name for name in given.sent(lease.token) if name == b"SET"]
        assert len(sets) == 1, "the acquire"
        assert holders(nodes[:3], "x")[2] is None
        assert await lease.release()


async def test_extensions_sent_to_all_at_once_spare_a_node_in_doubt(
    face: Face, nodes: Servers
) -> None:
    """Also where all nodes know the script, and asyncio asks them together."""
    async with giver(face, nodes) as given:
        lease = await given.redlock.lock("x").acquire()
        for _ in range(3):
            await lease.extend()
        assert await until_async(lambda: len(given.sent(lease.token)) == 4)
        assert b"EVALSHA" in given.sent(lease.token)
        ticket = await lease.hand_over()
        reported = ticket.__replace__(in_doubt=((run_id(given.hidden), None),))
        adopted = await given.redlock.adopt(reported)
        for _ in range(3):
            await adopted.extend()
        renewed = await given.redlock.adopt(await adopted.hand_over(), renew=True)
        await see_a_pass(renewed)
        assert len(given.sent(lease.token)) == 4
        assert await renewed.release()


# --- rule 13: renewal is stopped before the ticket is there -------------------------------------


async def test_nothing_of_its_renewal_follows_the_ticket(face: Face, nodes: Servers) -> None:
    """A pass that is under way is waited for, and the lease is not renewed any more."""
    with Proxy(nodes[0].url) as first, Proxy(nodes[1].url) as second:
        urls = [first.url, second.url, nodes[2].url]
        async with face.redlock(urls, node_timeout=0.2, ttl=2.0) as redlock:
            lease = await redlock.lock("x", renew=True).acquire()
            renewal: Any = lease._state.renewal
            for proxy in (first, second):
                proxy.hold()
            assert await until_async(lambda: renewal.in_flight)
            ticket = await lease.hand_over()
            assert lease._state.renewal is None
            assert face.name == "asyncio" or not renewal.in_flight
            for proxy in (first, second):
                proxy.resume()
            assert await until_async(lambda: not renewal.in_flight)
            named = ticket.token.encode()
            sent = [sum(named in c for c in proxy.requests) for proxy in (first, second)]
            await asyncio.sleep(SOON)
            assert sent == [sum(named in c for c in proxy.requests) for proxy in (first, second)]
            assert await redlock.release("x", ticket.token)


# --- tickets --------------------------------------------------------------------------------------


def test_a_ticket_of_before_is_read() -> None:
    """A text and a pickle that know of no doubts: none is known."""
    old = '{"resource": "a", "token": "t", "ttl": 2.0, "fence": null}'
    assert Ticket.from_json(old) == Ticket("a", "t", 2.0)
    assert Ticket.from_json(old).in_doubt == ()
    ticket = Ticket("a", "t", 2.0, 7)
    for state in (("a", "t", 2.0, 7), {"resource": "a", "token": "t", "ttl": 2.0, "fence": 7}):
        restored = Ticket.__new__(Ticket)
        restored.__setstate__(state)
        assert restored == ticket
        assert hash(restored) == hash(ticket)


def test_a_ticket_with_doubts_is_a_value() -> None:
    """Text and back, pickled, compared, hashed; its repr keeps the token to itself."""
    ticket = Ticket("a", "secret", 2.0, None, (("run", 1.5), ("open", None)))
    assert Ticket.from_json(ticket.to_json()) == ticket
    assert pickle.loads(pickle.dumps(ticket)) == ticket
    assert len({ticket, Ticket.from_json(ticket.to_json())}) == 1
    assert ticket != Ticket("a", "secret", 2.0)
    assert "secret" not in repr(ticket)
    assert "in_doubt=(('run', 1.5), ('open', None))" in repr(ticket)


WRONG = ("x", 3, [["run"]], [[1, 2]], [["run", "x"]], [["run", -1]], [["run", True]], {"run": 1})


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
async def test_doubts_that_are_none_are_refused(wrong: Any, face: Face, nodes: Servers) -> None:
    """ConfigError, from text and from adopt, before anything is asked."""
    text = json.dumps({"resource": "a", "token": "t", "ttl": 2.0, "in_doubt": wrong})
    with pytest.raises(ConfigError, match="ticket="):
        Ticket.from_json(text)
    async with face.redlock(nodes.urls) as redlock:
        for doubts in (wrong, (("run", float("nan")),), (("run", float("inf")),)):
            error = await raises(ConfigError, redlock.adopt(Ticket("a", "t", 2.0, None, doubts)))
            assert "in_doubt" in str(error)
