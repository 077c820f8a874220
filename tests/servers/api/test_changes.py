"""Shared settings are changed by the command while clients run, on real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import quorlock
from quorlock import QuorlockError
from quorlock._drivers import change_agreement as change
from quorlock.testing.servers import Server, Servers
from tests.harness.support.wait import until
from tests.servers.api.busy_clients import BRIEF, Clients

CONFIG = "quorlock:config"


def nodes_of(servers: list[Server]) -> list[quorlock.Node]:
    return [quorlock.Node.from_url(server.url) for server in servers]


def kept(servers: list[Server]) -> list[str]:
    return [(server.execute("GET", CONFIG) or b"").decode() for server in servers]


def await_name(servers: list[Server]) -> None:
    """Wait until all have the name of their set: the last node gets it after the first locks."""
    assert until(lambda: all(" set=" in text for text in kept(servers)), 10), kept(servers)


@pytest.fixture
def clients() -> Iterator[Clients]:
    found = Clients()
    yield found
    found.join()
    assert found.overlaps == 0


def test_max_ttl_is_raised_while_clients_run(nodes: Servers, clients: Clients) -> None:
    """Clients with the longer one first, then the nodes; who was left out is refused, and named."""
    three, lines = nodes[:3], list[str]()
    urls = [server.url for server in three]
    clients.start(urls)
    clients.go_on()
    clients.start(urls, max_ttl=2.0)
    clients.go_on()
    await_name(three)
    with quorlock.Redlock(urls, **BRIEF | {"max_ttl": 2.0, "ttl": 1.0}) as longer:
        with pytest.raises(QuorlockError, match=r"agreed on max_ttl=0\.4"):
            longer.lock("long").acquire(timeout=0)
        change.change_max_ttl(nodes_of(three), 2_000, lines.append)
        longer.lock("long").acquire(timeout=5.0).release()
    assert {"max_ttl_ms=2000" in text and "version=3" in text for text in kept(three)} == {True}
    clients.go_on()
    clients.await_refusal("give max_ttl=2", "max_ttl_ms=2000")
    assert len(lines) == 6


def test_max_ttl_is_lowered_while_clients_run(nodes: Servers, clients: Clients) -> None:
    """The nodes first; leases of before are waited for before shorter quarantines are let in."""
    three, lines = nodes[:3], list[str]()
    urls = [server.url for server in three]
    clients.start(urls, max_ttl=0.6)
    clients.go_on()
    await_name(three)
    change.change_max_ttl(nodes_of(three), 400, lines.append)
    assert any("waiting 0.7 s" in line for line in lines)
    clients.start(urls)
    clients.go_on(40)
    assert {"max_ttl_ms=400" in text for text in kept(three)} == {True}
    change.change_max_ttl(nodes_of(three), 400, lines.append)
    assert len(lines) == 7, "nothing is left to be done"


def test_the_guard_is_changed_while_clients_run(nodes: Servers, clients: Clients) -> None:
    three = nodes[:3]
    urls = [server.url for server in three]
    clients.start(urls)
    clients.go_on()
    await_name(three)
    change.change_guards(nodes_of(three), ("None", "uptime"), lambda _: None)
    clients.start(urls, restart_guard="uptime")
    clients.go_on(40)
    assert clients.refused == [] or all("connection" in text for text in clients.refused)
    clients.join()
    change.change_guards(nodes_of(three), ("uptime",), lambda _: None)
    with (
        quorlock.Redlock(urls, **BRIEF) as redlock,
        pytest.raises(QuorlockError, match="give restart_guard=uptime"),
    ):
        redlock.lock("x").acquire(timeout=0)


def test_a_dead_node_is_replaced_while_clients_run(nodes: Servers, clients: Clients) -> None:
    """Removed, then the other added: {1, 2, 3} becomes {1, 2} becomes {1, 2, 4}."""
    one, two, dead, fresh = nodes[:4]
    clients.start([one.url, two.url, dead.url])
    clients.go_on()
    await_name([one, two, dead])
    dead.kill()
    clients.go_on()
    names = nodes_of([one, two])
    gone, new = nodes_of([dead, fresh])
    change.begin(names, gone, joins=False, say=lambda _: None)
    clients.start([one.url, two.url])
    clients.go_on()
    clients.join()
    change.finish_change(names, gone, joins=False, say=lambda _: None)
    clients.start([one.url, two.url])
    clients.go_on()
    with (
        quorlock.Redlock([one.url, two.url, fresh.url], **BRIEF) as early,
        pytest.raises(QuorlockError, match="list 2 nodes"),
    ):
        early.lock("y").acquire(timeout=0)
    change.begin(names, new, joins=True, say=lambda _: None)
    clients.start([one.url, two.url, fresh.url])
    clients.go_on()
    clients.join()
    change.finish_change(names, new, joins=True, say=lambda _: None)
    clients.start([one.url, two.url, fresh.url])
    clients.go_on()
    assert len(set(kept([one, two, fresh]))) == 1
    assert kept([one])[0].startswith("n=3 ")


def test_who_comes_with_the_longer_list_of_another_node(nodes: Servers) -> None:
    """Only the node that is being added may be the fourth; it refuses clients that list three."""
    four, other = nodes[:4], nodes[4]
    urls = [server.url for server in four]
    with quorlock.Redlock(urls[:3], **BRIEF) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()
    names = nodes_of(four)
    change.begin(names[:3], names[3], joins=True, say=lambda _: None)
    with (
        quorlock.Redlock([*urls[:2], urls[3]], **BRIEF) as wrong,
        pytest.raises(QuorlockError, match="list 4 nodes"),
    ):
        wrong.lock("x").acquire(timeout=0)
    with quorlock.Redlock([*urls[:3], other.url], **BRIEF) as wrong:
        lease = wrong.lock("x").acquire(timeout=5.0)
        assert [vote.vote for vote in lease.votes][3] != "granted"
        lease.release()
    assert kept([other]) == [""], "nobody writes on an empty node meanwhile"


def test_a_second_node_is_not_added_before_the_first_change_is_finished(nodes: Servers) -> None:
    """Majorities of the lists with one and with the other may be disjoint: {1, 3} and {2, 4}."""
    two, names = nodes[:2], nodes_of(nodes[:4])
    with quorlock.Redlock([server.url for server in two], **BRIEF) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()
    members, first, second = names[:2], names[2], names[3]
    acts = (change.begin, change.finish_change)
    for joins in (True, False):
        change.begin(members, first, joins=joins, say=lambda _: None)
        for act in acts:
            with pytest.raises(change.ChangeError, match="not part of the change"):
                act(members, second, joins=True, say=lambda _: None)
        assert kept([nodes[3]]) == [""]
    change.begin(members, first, joins=True, say=lambda _: None)
    for act in acts:
        act(members, first, joins=False, say=lambda _: None)
    for act in acts:
        act(members, second, joins=True, say=lambda _: None)
    assert {text[:4] for text in kept([*two, nodes[3]])} == {"n=3 "}


def test_an_interrupted_change_is_continued(nodes: Servers) -> None:
    three = nodes[:3]
    names = nodes_of(three)
    with quorlock.Redlock([server.url for server in three], **BRIEF) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()
    for stops_after in range(6):
        lines: list[str] = []

        def say(line: str, lines: list[str] = lines, left: int = stops_after) -> None:
            lines.append(line)
            if len(lines) > left:
                raise KeyboardInterrupt

        goal = 2_000 + stops_after
        with pytest.raises(KeyboardInterrupt):
            change.change_max_ttl(names, goal, say)
        change.change_max_ttl(names, goal, lambda _: None)
        assert len(set(kept(three))) == 1
        assert f"max_ttl_ms={goal} " in kept(three)[0]
        assert "guard_ms" not in kept(three)[0]


def test_a_change_needs_all_nodes_and_nodes_of_one_set(nodes: Servers) -> None:
    three = nodes[:3]
    with quorlock.Redlock([server.url for server in three], **BRIEF) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()
    before = kept(three)
    three[2].kill()
    with pytest.raises(change.ChangeError, match="needs all nodes"):
        change.change_max_ttl(nodes_of(three), 1_000, lambda _: None)
    with pytest.raises(change.ChangeError, match="do not keep the same"):
        change.change_max_ttl(nodes_of([*three[:1], *nodes[3:5]]), 1_000, lambda _: None)
    assert kept(three[:2]) == before[:2]
