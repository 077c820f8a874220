"""`status --match` finds what is held, whatever else there is, and says what it cannot see."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from quorlock import Node, Redlock
from quorlock._cli import scan
from quorlock._cli.config import FileSettings
from quorlock._cli.exit_status import EX_NOPERM, EX_UNAVAILABLE, EX_USAGE, Failed
from quorlock._cli.scan import Listing, WatchedNames, escaped
from quorlock.testing.servers import Server, Servers
from tests.harness.support.impostors import Caller, Impostor, Proxy
from tests.servers.api.faces import steal
from tests.servers.api.test_acl import WORDS
from tests.servers.cli import schema
from tests.servers.cli.command import Shell
from tests.servers.cli.test_status import SCHEMA


def listed(urls: list[str], pattern: str = "*", **arguments: Any) -> list[str]:
    """The names that match."""
    settings = FileSettings(tuple(map(Node.from_url, urls)), arguments, {})
    return scan.list_once(settings, pattern).names


def heads(printed: str) -> list[str]:
    """The resources of an answer, and what is said of them."""
    return [line for line in printed.splitlines() if not line.startswith("  ")]


def test_what_matches_is_looked_at_as_what_is_named(shell: Shell, nodes: Servers) -> None:
    """The names are sorted; a key on a single node is found, too."""
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("job:2"), redlock.lock("other"):
        steal(nodes[4:], "job:1")
        done = shell.run("status", "--match", "job:*")
        assert (done.returncode, done.stderr) == (0, "")
        leftover, held = heads(done.stdout)
        assert leftover.startswith("'job:1': leftover: ")
        assert held.startswith("'job:2': held by ")
        facts = json.loads(shell.answer("status", "--match", "job:*", "--json"))
    assert schema.problems(facts, SCHEMA["$defs"]["status"], SCHEMA) == []
    verdicts = [(one["resource"], one["verdict"]) for one in facts["resources"]]
    assert verdicts == [("job:1", "leftover"), ("job:2", "held")]


@pytest.mark.parametrize("words", ["status --match *", "top --once", "nodes config", "doctor"])
def test_a_server_of_another_kind_that_knows_ping(words: str, shell: Shell) -> None:
    """The command names that node, without a traceback."""

    async def says_little(caller: Caller) -> None:
        while data := await caller.read():
            await caller.write(b"+PONG\r\n" if b"PING" in data else b":1\r\n")

    with Impostor(says_little) as impostor:
        done = shell.run(*words.split(), "--nodes", impostor.url)
    assert "Traceback" not in done.stderr
    assert "does not speak" in " ".join((done.stdout + done.stderr).split())


def test_nothing_matches(shell: Shell, nodes: Servers) -> None:
    """stdout has nothing that is not an answer."""
    done = shell.run("status", "--match", "x[0-9]")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "quorlock status: nothing matches 'x[0-9]'\n"
    done = shell.run("status", "--match", "x[0-9]", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"resources": []})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "--match", "b"], "not both"),
        (["a", "--limit", "3"], "--limit is for --match"),
        (["a", "--interval", "3"], "--interval is for --watch"),
        (["a", "--watch", "--interval", "1ms"], "--interval is 0.1 seconds to a day"),
        (["a", "--watch", "--interval", "2d"], "--interval is 0.1 seconds to a day"),
        (["--match", "b", "--limit", "0"], "--limit"),
    ],
    ids=" ".join,
)
def test_options_that_mean_nothing_together(words: list[str], said: str, shell: Shell) -> None:
    assert said in shell.complaint(EX_USAGE, "status", *words)


def test_only_what_a_lock_can_be(nodes: Servers) -> None:
    """Side keys, other types of data and impossible names are not listed."""
    with Redlock(nodes.urls) as redlock, redlock.lock("a", fencing=True):
        node = nodes[0]
        node.execute("RPUSH", "list", "1")
        node.execute("HSET", "hash", "a", "1")
        node.execute("SET", "x" * 513, "1")
        node.execute("SET", b"nul\0l", "1")
        node.execute("SET", b"\xff", "1")
        assert any(key.startswith(b"quorlock:fence:") for key in node.execute("KEYS", "*"))
        assert listed(nodes.urls) == ["a", "\udcff"]


@pytest.mark.parametrize("prefix", ["app:", "[a]*?\\^-x:", "þ*:"])
def test_the_prefix_is_no_pattern(nodes: Servers, prefix: str) -> None:
    """The prefix is added literally, and removed again."""
    with Redlock(nodes.urls, prefix=prefix) as redlock, redlock.lock("a"), redlock.lock("[b]"):
        for name in ("a", "app-a", "axx:a", "quorlock"):
            nodes[0].execute("SET", name, "1")
        assert listed(nodes.urls, prefix=prefix) == ["[b]", "a"]
        assert listed(nodes.urls, "[a-b]", prefix=prefix) == ["a"]
        assert listed(nodes.urls, r"\[b\]", prefix=prefix) == ["[b]"]


@pytest.mark.parametrize("text", [b"a*b", b"a?", b"[a-c]", b"\\", b"^-", b"\xff\xfe", b""])
def test_what_is_escaped_means_itself(text: bytes, nodes: Servers) -> None:
    node = nodes[0]
    node.execute("SET", text + b"x", "1")
    node.execute("SET", b"other", "1")
    found = node.execute("SCAN", "0", "MATCH", escaped(text) + b"x", "COUNT", "1000")[1]
    assert found == [text + b"x"]


class WithoutType(Proxy):
    """A server before 6.0: its SCAN knows no TYPE, and says so in the same words."""

    async def forward(self, data: bytes) -> bytes:
        return data.replace(b"\r\nTYPE\r\n", b"\r\nTYPO\r\n")


def test_a_server_that_knows_no_types(nodes: Servers) -> None:
    steal(nodes[:1], "a")
    nodes[0].execute("RPUSH", "list", "1")
    with WithoutType(nodes[0].url) as old:
        assert listed([old.url]) == ["a", "list"]


def test_another_database(nodes: Servers) -> None:
    """The one that the URL names."""
    urls = [url.replace("?db=0", "?db=3") for url in nodes.urls]
    steal(nodes[:], "zero")
    with Redlock(urls) as redlock, redlock.lock("three"):
        assert listed(urls) == ["three"]


# --- many ------------------------------------------------------------------------------------


def fill(nodes: Iterable[Server], count: int) -> None:
    """Keys of another application."""
    script = "for i = 1, ARGV[1] do redis.call('SET', 'theirs:' .. i, i) end"
    for node in nodes:
        node.execute("EVAL", script, "0", str(count))


def test_ten_thousand_keys_of_another_application(shell: Shell, nodes: Servers) -> None:
    """The output has as many as the limit, and the number of the others."""
    fill(nodes, 10_000)
    with Redlock(nodes.urls, ttl=30) as redlock, redlock.lock("ours"):
        done = shell.run("status", "--match", "*", "--limit", "3")
        assert done.returncode == 0
        assert len(heads(done.stdout)) == 3
        assert "and 9,998 more match; --limit 3 shows no more" in done.stderr
        done = shell.run("status", "--match", "*", "--limit", "3", "--json")
        facts = json.loads(done.stdout)
        assert schema.problems(facts, SCHEMA["$defs"]["status"], SCHEMA) == []
        assert facts["more"] == 9_998
        assert shell.answer("status", "--match", "o*").startswith("'ours': held by ")


def test_what_is_kept_of_a_node_has_an_end(nodes: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said that there may be more."""
    fill(nodes[:1], 10_000)
    monkeypatch.setattr(scan, "_NAMES_MAX", 2_000)
    settings = FileSettings((Node.from_url(nodes[0].url),), {}, {})
    found = scan.list_once(settings, "*")
    assert 2_000 <= len(found.names) < 10_000
    assert "narrow the pattern" in found.trouble
    assert not found.whole


def test_a_node_rests_after_it_was_made_to_look_at_many(nodes: Servers) -> None:
    """A repeated request gets its last answer; a small node is asked again."""
    fill(nodes[:1], 30_000)
    settings = FileSettings((Node.from_url(nodes[0].url),), {}, {})
    nodes[0].execute("CONFIG", "RESETSTAT")  # other tests have listed its keys
    began = time.monotonic()
    with scan.pollers_of(settings, "ours", 0.001) as pollers:
        pollers.wait(5)
        until = time.monotonic() + 0.5
        calls: bytes = b""
        while time.monotonic() < until:
            calls = nodes[0].execute("INFO", "commandstats")
        took = time.monotonic() - began
    (scans,) = [line for line in calls.splitlines() if line.startswith(b"cmdstat_scan:")]
    count = int(scans.partition(b"calls=")[2].partition(b",")[0])
    # 30 calls for one pass (they are said to look at "about" a thousand keys each), and 3 ms of
    # rest for each of them.
    assert count <= (took / 0.003 + 30) * 1.2


def test_what_is_watched_has_an_end() -> None:
    """Held locks stay; new ones are added if there is room."""
    wanted = WatchedNames((), 3)

    def take(*names: str) -> tuple[int, list[str]]:
        return wanted.take(Listing(list(names), whole=True, unlisted={}, n=1)), wanted.names

    assert take("b", "d") == (0, ["b", "d"])
    assert take("a", "b", "c", "d") == (1, ["a", "b", "d"])
    wanted.keep(["d"])
    assert take("a", "b", "c", "d") == (1, ["a", "b", "d"])
    assert take() == (0, ["a", "b", "d"])


# --- nodes that do not list keys ---------------------------------------------------------------


def test_while_nodes_are_killed(shell: Shell, mortal_nodes: Servers) -> None:
    """A quorum lists everything that is held; with fewer there is no result."""
    # A busy test machine is not what is to be found: each of the three that are left must answer.
    patience = shell.home / "patient.toml"
    patience.write_text("node_timeout = 1.0\n")
    shell.variables["QUORLOCK_CONFIG"] = str(patience)
    steal(mortal_nodes[2:], "a")
    mortal_nodes[0].kill()
    mortal_nodes[1].stop()
    done = shell.run("status", "--match", "*")
    assert done.returncode == 0
    assert done.stdout.startswith("'a': held by ")
    assert done.stderr.startswith("quorlock status: 2 of 5 nodes did not list their keys (")
    assert f"{mortal_nodes[0].path}: Connection refused" in done.stderr
    assert f"{mortal_nodes[1].path}: no answer within 1 s" in done.stderr
    mortal_nodes[2].kill()
    said = shell.complaint(EX_UNAVAILABLE, "status", "--match", "*")
    assert said.startswith("quorlock status: 3 of 5 nodes did not list their keys (")


def test_no_wait_is_longer_than_the_deadlines(mortal_nodes: Servers) -> None:
    """All of them hang: they are waited for together, not one after the other."""
    for node in mortal_nodes:
        node.stop()
    began = time.monotonic()
    with pytest.raises(Failed, match="5 of 5 nodes did not list"):
        listed(mortal_nodes.urls, connect_timeout=1.0)
    assert time.monotonic() - began < len(mortal_nodes) * 1.0


@pytest.fixture(scope="module")
def guarded() -> Iterator[Servers]:
    """Three whose users are this module's business."""
    with Servers(3) as servers:
        yield servers


LINE = ["on", ">pw", "~*", *(word for word in WORDS if word.startswith("+"))]


def enter(servers: Servers, name: str, *more: str) -> list[str]:
    """Log in as a user with the permissions of docs/how-to/acl.md, and more."""
    for server in servers:
        server.execute("ACL", "SETUSER", name, "reset", *LINE, *more)
    return [url.replace("unix://", f"unix://{name}:pw@") for url in servers.urls]


def test_a_missing_right_to_scan_is_reported(bare_shell: Shell, guarded: Servers) -> None:
    """77 and the word that is lacking; with it, it is enough."""
    at = ("--nodes", ",".join(enter(guarded, "poor")))
    for words in (["--match", "*"], ["--match", "*", "--watch"]):
        said = bare_shell.complaint(EX_NOPERM, "status", *words, *at)
        assert "grant +scan (docs/how-to/acl.md), or name the resources" in said
        assert "'scan'" in said
    assert bare_shell.answer("status", "a", *at).startswith("'a': free")
    at = ("--nodes", ",".join(enter(guarded, "rich", "+scan")))
    bare_shell.answer("acquire", "a", *at)
    assert bare_shell.answer("status", "--match", "*", *at).startswith("'a': held by ")


def test_it_asks_no_more_than_once_for_what_it_may_not(guarded: Servers) -> None:
    """Each refusal leaves a line in ACL LOG."""
    urls = enter(guarded, "refused")
    for server in guarded:
        server.execute("ACL", "LOG", "RESET")
    settings = FileSettings(tuple(map(Node.from_url, urls)), {}, {})
    with scan.pollers_of(settings, "*", 0.001) as pollers:
        pollers.wait(5)
        time.sleep(0.1)  # a hundred looks
        assert all(report.said and report.said.refused for report in pollers.reports.values())
    for server in guarded:
        (entry,) = [e for e in server.execute("ACL", "LOG") if e[e.index(b"object") + 1] == b"scan"]
        assert entry[entry.index(b"count") + 1] == 1
