"""Faults of a node in memory: restarts, eviction, FLUSHALL, becoming a replica, being full."""

from __future__ import annotations

import pytest

from quorlock import scripts
from quorlock._core.commands import Acquire, Extend, Inspect, Release
from quorlock.testing.fake_commands import ClientSession
from quorlock.testing.fake_node import FULL, OK, READ_ONLY, Error, FakeNode

KEY, TOKEN, OTHER = b"resource", b"0123456789abcdef", b"fedcba9876543210"
NOW = 1_000_000  # ms
ACQUIRE = Acquire(KEY, TOKEN, 100)


@pytest.fixture
def node() -> FakeNode:
    """One that holds the lock for 100 ms."""
    node = FakeNode("first")
    assert node.ask(ACQUIRE, NOW) == OK
    return node


def holder(node: FakeNode, at: int = NOW) -> object:
    reply = node.ask(Inspect(KEY), at)
    assert isinstance(reply, list)
    return reply[0]


# --- time -----------------------------------------------------------------------------------------


def test_a_key_lives_to_the_end_of_its_last_ms(node: FakeNode) -> None:
    """A key exists as long as the server's clock has not passed the instant: now > when, in its
    source.
    """
    assert node.ask(Inspect(KEY), NOW + 100) == [TOKEN, 0, 0]
    assert node.ask(Inspect(KEY), NOW + 101) == [None, -2, 0]
    assert node.keys == {}


def test_a_clock_that_is_set_back_lets_keys_live_longer(node: FakeNode) -> None:
    assert node.ask(Inspect(KEY), NOW - 1000) == [TOKEN, 1100, 0]
    assert node.ask(Acquire(KEY, OTHER, 100), NOW + 100) is None


def test_what_a_command_found_expired_does_not_come_back(node: FakeNode) -> None:
    """The key stays gone, even if the clock is set back behind its expiry."""
    assert holder(node, NOW + 101) is None
    assert holder(node, NOW) is None


# --- restarts -------------------------------------------------------------------------------------


def test_a_restart_with_its_memory_keeps_the_keys(node: FakeNode) -> None:
    """An append-only file that was always written: their ends are instants, the clock went on."""
    node.restart("second", memory="kept")
    assert node.run_id == "second"
    assert node.ask(Inspect(KEY), NOW + 40) == [TOKEN, 60, 0]


def test_a_restart_without_memory_is_empty(node: FakeNode) -> None:
    node.save()
    node.restart("second", memory="lost")
    assert (node.run_id, node.keys) == ("second", {})
    node.restart("third", memory="saved")
    assert node.keys == {}, "the file was lost as well"


def test_a_restart_from_disk_brings_back_what_was_saved(node: FakeNode) -> None:
    """And only that: what came later is gone, what was deleted later is there again."""
    node.save()
    later = b"later"
    assert node.ask(Release(KEY, TOKEN), NOW + 1) == -3
    assert node.ask(Acquire(later, OTHER, 100), NOW + 1) == OK
    node.restart("second", memory="saved")
    assert holder(node, NOW + 2) == TOKEN
    assert node.ask(Inspect(later), NOW + 2) == [None, -2, 0]


def test_a_restart_from_disk_twice_brings_back_the_same(node: FakeNode) -> None:
    """Changes after the first restart are not in the file."""
    node.save()
    node.restart("second", memory="saved")
    assert node.ask(Release(KEY, TOKEN), NOW) == -3
    node.restart("third", memory="saved")
    assert holder(node) == TOKEN


def test_a_restart_from_disk_that_was_never_written_is_empty(node: FakeNode) -> None:
    node.restart("second", memory="saved")
    assert node.keys == {}


def test_a_key_that_ran_out_while_the_node_was_down_is_gone(node: FakeNode) -> None:
    node.save()
    node.restart("second", memory="saved")
    assert node.ask(Acquire(KEY, OTHER, 100), NOW + 101) == OK


@pytest.mark.parametrize("memory", ["kept", "saved", "lost"])
def test_a_restart_forgets_scripts_whatever_it_keeps(node: FakeNode, memory: str) -> None:
    session = ClientSession(node)
    evalsha = (b"EVALSHA", scripts.INSPECT.sha, b"1", KEY)
    session.execute((b"EVAL", scripts.INSPECT.text, b"1", KEY), NOW)
    assert not isinstance(session.execute(evalsha, NOW), Error)
    node.restart("second", memory=memory)
    assert session.execute(evalsha, NOW) == "NOSCRIPT No matching script."


def test_uptime_counts_from_the_last_start(node: FakeNode) -> None:
    """Uptime is in whole seconds of the wall clock: 900 ms may read as one."""
    node.restart("second", memory="lost", started=NOW + 500)

    def uptime(at: int) -> int:
        reply = ClientSession(node).execute((b"INFO", b"server"), at)
        assert isinstance(reply, bytes)
        assert b"run_id:second\r\n" in reply
        return int(reply.partition(b"uptime_in_seconds:")[2].split()[0])

    assert uptime(NOW + 999) == 0
    assert uptime(NOW + 1000) == 1
    assert uptime(NOW + 9999) == 9


# --- unnoticed losses
# ------------------------------------------------------------------------------


def test_flushall_leaves_the_process_and_the_file(node: FakeNode) -> None:
    node.save()
    node.flush()
    assert (node.run_id, node.keys) == ("first", {})
    node.restart("second", memory="saved")
    assert holder(node) == TOKEN


def test_eviction_takes_one_key_whatever_its_ttl(node: FakeNode) -> None:
    other = b"other"
    node.ask(Acquire(other, OTHER, 10_000), NOW)
    node.evict(KEY)
    node.evict(b"absent")
    assert holder(node) is None
    assert node.ask(Inspect(other), NOW) == [OTHER, 10_000, 0]
    assert node.ask(Extend(KEY, TOKEN, 100), NOW) == -1
    assert node.ask(Release(KEY, TOKEN), NOW) == -2


# --- states in which it refuses -------------------------------------------------------------------


def test_a_replica_refuses_to_write_and_answers_requests(node: FakeNode) -> None:
    """The first write of a script fails; a script that writes nothing succeeds."""
    node.read_only = True
    assert node.ask(Acquire(b"free", TOKEN, 100), NOW) == READ_ONLY
    for command in (Release(KEY, TOKEN), Extend(KEY, TOKEN, 200)):
        reply = node.ask(command, NOW)
        assert isinstance(reply, Error)
        assert reply.startswith(f"{READ_ONLY} script: on @user_script:")
    assert node.ask(Extend(KEY, TOKEN, 50), NOW) == 1
    assert node.ask(Extend(KEY, OTHER, 200), NOW) == 0
    assert node.ask(Release(KEY, OTHER), NOW) == 100
    assert node.ask(Inspect(KEY), NOW) == [TOKEN, 100, 0]


def test_a_replica_hides_what_expired_and_keeps_it(node: FakeNode) -> None:
    """The deletion would come from its master; when it is promoted, it deletes keys itself."""
    node.read_only = True
    assert holder(node, NOW + 101) is None
    assert KEY in node.keys
    assert holder(node, NOW) == TOKEN, "the clock was set back"
    node.read_only = False
    assert node.ask(Acquire(KEY, OTHER, 100), NOW + 101) == OK


def test_a_full_node_refuses_new_locks_only(node: FakeNode) -> None:
    """Extending and releasing need no more memory."""
    node.full = True
    assert node.ask(Acquire(b"free", TOKEN, 100), NOW) == FULL
    assert node.ask(Acquire(KEY, OTHER, 100), NOW) == FULL
    assert node.ask(Extend(KEY, TOKEN, 200), NOW) == 1
    assert node.ask(Inspect(KEY), NOW) == [TOKEN, 200, 0]
    assert node.ask(Release(KEY, TOKEN), NOW) == -3
    node.full = False
    assert node.ask(Acquire(KEY, OTHER, 100), NOW) == OK


def test_a_full_replica_says_that_it_is_a_replica() -> None:
    """Replicas leave maxmemory to their master."""
    node = FakeNode()
    node.full = node.read_only = True
    assert node.ask(ACQUIRE, NOW) == READ_ONLY
    assert ClientSession(node).execute((b"SET", KEY, TOKEN), NOW) == READ_ONLY


def test_roles_are_named_as_servers_name_them(node: FakeNode) -> None:
    """INFO and HELLO have two words for a replica."""
    session = ClientSession(node)
    for read_only, in_info, in_hello in (
        (False, b"master", b"master"),
        (True, b"slave", b"replica"),
    ):
        node.read_only = read_only
        reply = session.execute((b"INFO", b"replication"), NOW)
        server_info = session.execute((b"HELLO", b"3"), NOW)
        assert isinstance(reply, bytes)
        assert isinstance(server_info, dict)
        assert b"\r\nrole:%b\r\n" % in_info in reply
        assert server_info[b"role"] == in_hello


# --- connections ----------------------------------------------------------------------------------


def test_sessions_share_the_node_and_nothing_else(node: FakeNode) -> None:
    one, other = ClientSession(node, 1), ClientSession(node, 2)
    assert one.execute((b"GET", KEY), NOW) == other.execute((b"GET", KEY), NOW) == TOKEN
    for number, session in enumerate((one, other), 1):
        server_info = session.execute((b"HELLO", b"3"), NOW)
        assert isinstance(server_info, dict)
        assert server_info[b"id"] == number


def test_a_saved_list_is_not_touched_by_what_is_pushed_later(node: FakeNode) -> None:
    session = ClientSession(node)
    assert session.execute((b"RPUSH", b"list", b"a"), NOW) == 1
    node.save()
    assert session.execute((b"RPUSH", b"list", b"b"), NOW) == 2
    node.restart("second", memory="saved")
    assert session.execute((b"RPUSH", b"list", b"c"), NOW) == 2
