"""A node's keys and connections when its process is stopped, killed, restarted."""

from __future__ import annotations

import threading

import pytest

from tests.harness.faults import Site
from tests.harness.faults.fault import await_that
from tests.harness.faults.processes import Kill, RestartEmpty, RestartFromAof, Sigstop, run_id
from tests.harness.support.resp import Talk


def test_a_stopped_server_serves_what_it_was_sent_when_it_resumes(site: Site) -> None:
    fault = Sigstop()
    with Talk(site.proxy.path) as talk:
        assert talk.ask("PING") == b"PONG"
        fault.begin(site)
        talk.send("SET", "a", 1)
        fault.proof(site)
        fault.end(site)
        assert talk.read() == b"OK"


def test_a_killed_server_comes_back_empty_at_the_same_address(site: Site) -> None:
    fault = Kill()
    address, before = site.server.url, run_id(site)
    site.server.execute("SET", "a", 1)
    fault.begin(site)
    fault.end(site)
    assert (site.server.url, site.server.keys()) == (address, [])
    assert run_id(site) != before


def test_a_server_restarted_empty_votes_at_once(site: Site) -> None:
    fault = RestartEmpty()
    with Talk(site.proxy.path) as talk:
        assert talk.ask("SET", "lock", "one", "NX", "PX", 60_000) == b"OK"
        fault.begin(site)
        with pytest.raises(ConnectionError):
            talk.ask("PING")
    with Talk(site.proxy.path) as talk:
        assert talk.ask("SET", "lock", "two", "NX", "PX", 60_000) == b"OK"
    fault.end(site)
    assert site.server.execute("GET", "lock") == b"two"


class Writer(threading.Thread):
    """Sets one key after another until its connection ends, and knows which were acknowledged."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        try:
            with Talk(self._site.proxy.path) as talk:
                while talk.ask("SET", f"key:{len(self.acknowledged)}", 1, "PX", 60_000) == b"OK":
                    self.acknowledged.append(b"key:%d" % len(self.acknowledged))
        except OSError:
            pass  # the server is gone


def writes_through(site: Site, fault: RestartFromAof) -> Writer:
    """Write from before the fault until it breaks the connection."""
    writer = Writer(site)
    writer.start()
    try:
        await_that(lambda: len(writer.acknowledged) > 50, "keys are being set")
        fault.begin(site)
        print(f"\n{fault.proof(site)}")
    finally:
        site.proxy.cut()
        writer.join()
    return writer


def test_appendfsync_always_keeps_all_that_was_acknowledged(site: Site) -> None:
    fault = RestartFromAof("always")
    try:
        writer = writes_through(site, fault)
        missing = set(writer.acknowledged) - set(site.server.keys())
        print(f"{len(writer.acknowledged)} acknowledged, {len(missing)} lost")
        assert not missing
        assert 0 < site.server.execute("PTTL", "key:0") <= 60_000
    finally:
        fault.end(site)
    assert set(writer.acknowledged) <= set(site.server.keys())


def test_appendfsync_everysec_loses_the_last_and_only_the_last(site: Site) -> None:
    fault = RestartFromAof("everysec")
    try:
        writer = writes_through(site, fault)
        there = set(site.server.keys())
        kept = [key in there for key in writer.acknowledged]
        print(f"{len(kept)} acknowledged, {kept.count(False)} lost")
        assert kept == sorted(kept, reverse=True), "what is lost is the end"
        assert kept[0]
        assert not kept[-1]
    finally:
        fault.end(site)


def test_a_memory_from_long_ago_does_not_come_back(site: Site) -> None:
    """The append-only file of one fault is not read by the next."""
    fault = RestartFromAof("always")
    site.server.execute("SET", "old", 1)
    fault.begin(site)
    fault.end(site)
    assert site.server.keys() == [b"old"]
    site.server.restart()
    assert site.server.keys() == []
    fault.begin(site)
    fault.end(site)
    assert site.server.keys() == []
