"""Shared settings are changed by the command while clients run, on real servers."""

from __future__ import annotations

import contextlib
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
    change.finish(names, gone, joins=False, say=lambda _: None)
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
    change.finish(names, new, joins=True, say=lambda _: None)
    clients.start([one.url, two.url, fresh.url])
    clients.go_on()
    assert len(set(kept([one, two, fresh]))) == 1
    assert kept([one])[0].startswith("n=3 ")


def test_nodes_that_are_added_lack_the_marks(nodes: Servers) -> None:
    """Work that was done counts as done while fewer than a quorum of the nodes were added since."""
    three = nodes_of(nodes[:3])

    def is_done(members: list[quorlock.Node], work: str) -> bool:
        with quorlock.Redlock(members, **BRIEF) as redlock:
            return redlock.once(work, every=3_600.0).run(lambda _: "done") is None

    assert not is_done(three[:1], "x")
    change.begin(three[:1], three[1], joins=True, say=lambda _: None)
    change.finish(three[:1], three[1], joins=True, say=lambda _: None)
    assert is_done(three[:2], "x")
    assert not is_done(three[:2], "y")
    change.begin(three[:2], three[2], joins=True, say=lambda _: None)
    change.finish(three[:2], three[2], joins=True, say=lambda _: None)
    assert is_done(three, "y")
    assert not is_done(three, "x"), "two of three lack its mark"


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
    acts = (change.begin, change.finish)
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


def in_use(servers: list[Server]) -> list[quorlock.Node]:
    """Have a client write its settings on these nodes, and return them."""
    with quorlock.Redlock([server.url for server in servers], **BRIEF) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()
    await_name(servers)
    return nodes_of(servers)


def quiet(line: str) -> None:
    """Say nothing."""
    del line


@pytest.mark.parametrize("finish", [False, True], ids=["begin", "finish"])
def test_no_member_is_removed_while_another_node_is_added(nodes: Servers, finish: bool) -> None:
    """Two lists would be allowed whose majorities {a, c} and {b, d} share no node."""
    a, b, c, d = nodes_of(nodes[:4])
    in_use(nodes[:3])
    change.begin([a, b, c], d, joins=True, say=quiet)
    before = kept(nodes[:4])
    act = change.finish if finish else change.begin
    with pytest.raises(change.ChangeError, match=r"being added or removed|begin the change first"):
        act([a, b, d], c, joins=False, say=quiet)
    assert kept(nodes[:4]) == before
    change.finish([a, b, c], d, joins=True, say=quiet)
    change.begin([a, b, d], c, joins=False, say=quiet)
    change.finish([a, b, d], c, joins=False, say=quiet)
    assert [text[:4] for text in kept(nodes[:4])] == ["n=3 ", "n=3 ", "n=0 ", "n=3 "]


@pytest.mark.parametrize("finish", [False, True], ids=["begin", "finish"])
def test_two_members_are_removed_one_after_the_other(nodes: Servers, finish: bool) -> None:
    a, b, c, d = in_use(nodes[:4])
    change.begin([a, b, d], c, joins=False, say=quiet)
    before = kept(nodes[:4])
    act = change.finish if finish else change.begin
    with pytest.raises(change.ChangeError, match=r"being added or removed|begin the change first"):
        act([a, b, c], d, joins=False, say=quiet)
    assert kept(nodes[:4]) == before


@pytest.mark.parametrize("joins", [True, False], ids=["added", "removed"])
def test_other_settings_wait_for_the_end_of_a_change(nodes: Servers, joins: bool) -> None:
    """The fourth node would allow the lists of the others, if all four were given."""
    four = in_use(nodes[:4]) if not joins else [*in_use(nodes[:3]), *nodes_of(nodes[3:4])]
    change.begin(four[:3], four[3], joins=joins, say=quiet)
    before = kept(nodes[:4])
    for listed in (four, four[:3]):
        with pytest.raises(change.ChangeError, match="end that change first"):
            change.change_max_ttl(listed, 1_000, quiet)
        with pytest.raises(change.ChangeError, match="end that change first"):
            change.change_guards(listed, ("marker",), quiet)
    assert kept(nodes[:4]) == before


def test_of_two_changes_that_begin_in_the_same_wait_one_is_refused(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = in_use(nodes[:2])
    c, d = nodes_of(nodes[2:4])
    wait = change.wait

    def begin_the_other(ttl_ms: int, say: object) -> None:
        monkeypatch.setattr(change, "wait", wait)
        change.begin([a, b], c, joins=True, say=quiet)

    monkeypatch.setattr(change, "wait", begin_the_other)
    with pytest.raises(change.ChangeError, match="another client has just changed it"):
        change.begin([a, b], d, joins=True, say=quiet)
    assert kept(nodes[3:4]) == [""]


@pytest.mark.parametrize("lines", range(4))
def test_of_two_changes_at_the_same_instant_one_fails(nodes: Servers, lines: int) -> None:
    """Whichever write the second change comes after, at most one of the new nodes can be added."""
    a, b = in_use(nodes[:2])
    c, d = nodes_of(nodes[2:4])
    said: list[str] = []

    def begin_the_other(line: str) -> None:
        said.append(line)
        if len(said) == lines + 1:
            with contextlib.suppress(change.ChangeError):
                change.begin([a, b], d, joins=True, say=quiet)

    with contextlib.suppress(change.ChangeError):
        change.begin([a, b], c, joins=True, say=begin_the_other)
    assert len(said) > lines
    added: list[quorlock.Node] = []
    for _ in range(2):
        for node in (c, d):
            with contextlib.suppress(change.ChangeError):
                change.begin([a, b], node, joins=True, say=quiet)
                added.append(node)
    assert len(set(added)) == 1


def test_who_was_connected_at_an_interrupt_reads_the_new_settings_at_the_next_run(
    nodes: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after the last node was written, and before its clients were disconnected."""
    (node,) = in_use(nodes[:1])
    with quorlock.Redlock([nodes[0].url], **BRIEF) as redlock:
        redlock.lock("x").acquire(timeout=5.0).release()
        change.change_guards([node], ("None", "uptime"), quiet)
        redlock.lock("x").acquire(timeout=5.0).release()
        disconnect = change.disconnect_clients

        def interrupted(ask: object) -> None:
            monkeypatch.setattr(change, "disconnect_clients", disconnect)
            raise KeyboardInterrupt

        monkeypatch.setattr(change, "disconnect_clients", interrupted)
        with pytest.raises(KeyboardInterrupt):
            change.change_guards([node], ("uptime",), quiet)
        redlock.lock("x").acquire(timeout=5.0).release()
        change.change_guards([node], ("uptime",), quiet)
        with pytest.raises(QuorlockError, match="restart_guard=uptime version=3"):
            redlock.lock("x").acquire(timeout=5.0)


def test_a_node_of_another_set_is_not_removed(nodes: Servers) -> None:
    members, other = in_use(nodes[:3]), in_use(nodes[3:4])[0]
    before = kept(nodes[:4])
    with pytest.raises(change.ChangeError, match="begin the change first"):
        change.finish(members, other, joins=False, say=quiet)
    assert kept(nodes[:4]) == before


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
