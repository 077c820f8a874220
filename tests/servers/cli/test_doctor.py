"""`quorlock doctor` against real servers: a good set-up, and every bad one that can be built."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorlock import Node, Redlock
from quorlock._cli.config import FileSettings
from quorlock._cli.doctor import probe
from quorlock._cli.doctor.findings import Finding, findings
from quorlock._cli.doctor.fleet_checks import CHECKS
from quorlock._cli.doctor.probe import find_out
from quorlock.testing.servers import Servers, find_binary
from tests.harness.faults import shim
from tests.harness.support.impostors import Impostor, Proxy, TlsFront, answers
from tests.harness.support.resp import bulk
from tests.harness.support.wait import until
from tests.servers.cli.command import Shell

DOCS = Path(__file__).parents[3] / "docs" / "reference"
# A busy test machine is not what is to be found.
PATIENT = {"node_timeout": 1.0, "connect_timeout": 2.0, "ttl": 10.0}


@pytest.fixture(autouse=True)
def _soon_done(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the rates of clocks for a shorter time in tests of other things, less exactly."""
    if "clock" not in request.node.name:
        monkeypatch.setattr(probe, "_BETWEEN_READINGS", 0.1)
        monkeypatch.setattr(probe, "_RATE_SHARE", 0.2)


def examine(nodes: Sequence[str | Node], **arguments: Any) -> dict[str, list[Finding]]:
    """Return the doctor's findings, by level."""
    entries = tuple(n if isinstance(n, Node) else Node.from_url(n) for n in nodes)
    found = findings(CHECKS, find_out(FileSettings(entries, PATIENT | arguments, {})))
    by_level: dict[str, list[Finding]] = {"error": [], "warning": [], "unknown": [], "ok": []}
    for finding in found:
        assert finding.why
        assert bool(finding.fix) is (finding.level != "ok")
        by_level[finding.level].append(finding)
    return by_level


def names(found: dict[str, list[Finding]], *levels: str) -> set[str]:
    """Return the names of the checks that found something."""
    return {finding.check for level in levels for finding in found[level]}


def only(found: dict[str, list[Finding]], level: str, check: str) -> Finding:
    """The one finding that is not ok; all else is well."""
    reported = [*found["error"], *found["warning"], *found["unknown"]]
    assert [(f.level, f.check) for f in reported] == [(level, check)]
    return reported[0]


@pytest.fixture
def two(nodes: Servers) -> list[str]:
    """Two sound nodes, to which a test adds a third."""
    return nodes.urls[:2]


@pytest.fixture
def odd_one(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """A server with the options that the test gives as a parameter."""
    with Servers(1, tcp=True, options=request.param) as servers:
        yield servers


def odd(*options: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("odd_one", [options], indirect=True, ids=["node"])


def test_a_sound_set_up_is_all_ok(nodes: Servers) -> None:
    found = examine(nodes.urls)
    assert names(found, "error", "warning", "unknown") == set()
    assert names(found, "ok") == {check.name for check in CHECKS} - {"zones"}
    assert all(not node.keys() for node in nodes), "it removes what it wrote"
    side_keys = [node.execute("KEYS", "quorlock:doctor*") for node in nodes]
    assert side_keys == [[]] * 5


@pytest.mark.parametrize(("n", "said"), [(1, "one node"), (2, "2 nodes, quorum 2: 0 may fail")])
def test_a_number_that_bears_less(nodes: Servers, n: int, said: str) -> None:
    assert said in only(examine(nodes.urls[:n]), "warning", "count").found


def test_no_node_there(two: list[str], tmp_path: Path) -> None:
    finding = only(examine([*two, f"unix://{tmp_path}/none"]), "error", "reach")
    assert (finding.node, finding.found) == (f"{tmp_path}/none", "No such file or directory")


def test_who_is_stopped(nodes: Servers) -> None:
    nodes[2].stop()
    try:
        finding = only(examine(nodes.urls[:3], connect_timeout=0.6), "error", "reach")
    finally:
        nodes[2].cont()
    assert finding.found == "no answer within 0.6 s"


def test_a_wrong_password_is_not_shown(two: list[str]) -> None:
    with Servers(1, password="right-one") as (server,):
        for node in (Node(path=server.path, password="wrong-one"), Node(path=server.path)):
            finding = only(examine([*two, node]), "error", "reach")
            assert "it refuses the login" in finding.found
            assert "-one" not in str(finding)


def test_one_server_under_two_addresses(nodes: Servers, two: list[str]) -> None:
    with Proxy(nodes[0].url) as proxy:
        finding = only(examine([*two, proxy.url]), "error", "distinct")
    assert nodes[0].path in finding.found


def test_a_replica_of_a_node_in_the_list(nodes: Servers) -> None:
    with Servers(2, tcp=True) as (master, replica):
        replica.execute("REPLICAOF", "127.0.0.1", master.port)
        found = examine([nodes[0].url, master.tcp_url, replica.url])
    assert names(found, "error") == {"role", "commands"}
    (role,) = [f for f in found["error"] if f.check == "role"]
    assert f"replica of 127.0.0.1:{master.port} (which is in the list too)" in role.found
    assert any("READONLY" in f.found for f in found["error"])


@odd("--cluster-enabled", "yes")
def test_a_cluster(two: list[str], odd_one: Servers) -> None:
    found = examine([*two, odd_one[0].url])
    assert "cluster mode" in next(f.found for f in found["error"] if f.check == "mode")


def test_a_proxy_shows_by_its_port(nodes: Servers, two: list[str]) -> None:
    with Servers(1, tcp=True) as (server,), Proxy(server.tcp_url, tcp=True) as proxy:
        finding = only(examine([*two, proxy.url]), "warning", "between")
    assert str(server.port) in finding.found


@odd("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")
def test_keys_may_be_evicted(two: list[str], odd_one: Servers) -> None:
    finding = only(examine([*two, odd_one[0].url]), "error", "eviction")
    assert "allkeys-lru" in finding.found
    odd_one[0].execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert names(examine([*two, odd_one[0].url]), "error") == set()


def test_a_full_node_refuses(two: list[str]) -> None:
    with Servers(1) as (server,):
        server.execute("CONFIG", "SET", "maxmemory", "1")
        found = examine([*two, server.url])
    assert "OOM" in next(f.found for f in found["error"] if f.check == "commands")
    assert names(found, "warning") == {"eviction"}


@odd("--appendonly", "yes", "--appendfsync", "everysec")
def test_it_is_not_as_durable_as_is_said(two: list[str], odd_one: Servers) -> None:
    urls = [*two, f"{odd_one[0].url}&durable=yes"]
    finding = only(examine(urls), "error", "persistence")
    assert "appendfsync is everysec" in finding.found
    odd_one[0].execute("CONFIG", "SET", "appendfsync", "always")
    assert names(examine(urls), "error", "warning", "unknown") == set()
    odd_one[0].execute("CONFIG", "SET", "appendonly", "no")
    assert "appendonly is off" in only(examine(urls), "error", "persistence").found


def test_without_a_guard_all_must_be_durable(nodes: Servers) -> None:
    found = examine(nodes.urls[:3], restart_guard=None)
    assert [f.check for f in found["error"]] == ["persistence"] * 3


def test_settings_that_the_nodes_do_not_share_are_found(bare_shell: Shell, nodes: Servers) -> None:
    """Every lock is refused then, and waiting does not help; new nodes are left as they are."""
    urls = nodes.urls[:3]
    assert names(examine(urls), "error", "warning") == set()
    assert not any(node.execute("EXISTS", "quorlock:config") for node in nodes)
    with Redlock(urls, max_ttl=20.0) as redlock:
        redlock.lock("a").acquire(timeout=5.0).release()
    assert names(examine(urls, max_ttl=20.0), "error", "warning") == set()
    finding = only(examine(urls, max_ttl=10.0), "error", "settings")
    assert "max_ttl_ms=20000" in finding.found
    assert "give max_ttl=20" in finding.fix
    assert names(examine(nodes.urls[:4]), "error") == {"settings"}
    done = bare_shell.run("doctor", "--wait", "9s", "--max-ttl", "10s", "--nodes", ",".join(urls))
    assert done.returncode == 1
    assert "these settings are refused" in done.stdout


def test_who_came_up_lately_is_kept_out(two: list[str]) -> None:
    with Servers(2) as servers:
        for server in servers:
            server.restart()
        finding = only(examine([*two, servers[0].url]), "warning", "uptime")
        assert "votes again in" in finding.found
        found = examine([two[0], *servers.urls])
    assert [f.check for f in found["error"]] == ["uptime"]
    assert "no lock for" in found["error"][0].found


def test_a_marker_that_is_not_there_keeps_out(nodes: Servers) -> None:
    urls = nodes.urls[:3]
    guarded = {"restart_guard": "marker", "max_ttl": 10.0}
    assert names(examine(urls, **guarded), "error", "warning") == {"uptime"}
    with Redlock(urls, restart_guard="marker", max_ttl=10.0) as redlock:
        assert redlock.lock("a").try_acquire() is not None, "servers that were born empty"
        # Two votes decided; the third node is still being connected.
        assert until(lambda: all(node.execute("EXISTS", "quorlock:guard") for node in nodes[:3]))
    assert names(examine(urls, **guarded), "error", "warning") == set()


def test_a_clock_that_jumps(two: list[str], tmp_path: Path) -> None:
    """The clock is set forward all the time, also between two readings."""
    if not shim.available():
        pytest.skip("no C compiler: clocks cannot be moved here")
    over = threading.Event()
    with Servers(1, binary=shim.wrapper(tmp_path, find_binary())) as (server,):
        offset = Path(server.execute("CONFIG", "GET", "dir")[1].decode()) / shim.OFFSET
        shim.move(offset, 3600)

        def run_away() -> None:
            ahead = 3600
            while not over.wait(0.02):
                ahead += 1
                shim.move(offset, ahead)

        thread = threading.Thread(target=run_away)
        thread.start()
        try:
            found = examine([*two, server.url])
        finally:
            over.set()
            thread.join()
    assert names(found, "error", "warning") == {"elapsed", "clocks"}
    assert "ahead" in next(f.found for f in found["warning"])


@pytest.mark.parametrize(
    ("ppm", "level"), [(83_333, "error"), (-30_000, "error"), (7_000, "warning"), (500, "ok")]
)
def test_a_clock_that_is_slewed(two: list[str], tmp_path: Path, ppm: int, level: str) -> None:
    """The clock runs as fast as chronyd permits by default, and as slowly as ntpd."""
    if not shim.available():
        pytest.skip("no C compiler: clocks cannot be moved here")
    with Servers(1, binary=shim.wrapper(tmp_path, find_binary(), ppm=ppm)) as (server,):
        found = examine([*two, server.url])
    if level == "ok":
        assert names(found, "error", "warning", "unknown") == set()
        return
    finding = only(found, level, "elapsed")
    shown = re.search(r"([\d.]+)% too (fast|slow) \(± ([\d.]+)%\)", finding.found)
    assert shown is not None
    off, direction, error = float(shown[1]), shown[2], float(shown[3])
    assert direction == ("fast" if ppm > 0 else "slow")
    assert abs(off - abs(ppm) / 10_000) <= error + 0.01


def test_a_slow_node(nodes: Servers, two: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its answers are late; on a busy machine some of the others' may be."""
    with Proxy(nodes[2].url) as proxy:
        proxy.delay = 0.15
        (finding,) = examine([*two, proxy.url], node_timeout=0.1)["error"]
    assert finding.check == "latency"
    assert finding.node == Node.from_url(proxy.url).address


def test_few_clients_are_left(two: list[str]) -> None:
    with Servers(1, options=("--maxclients", "10")) as (server,):
        guests = [Redlock([server.url], restart_guard=None) for _ in range(8)]
        for guest in guests:
            guest.inspect("a")
        server.execute("DEL", "quorlock:config")  # the guests list one node
        found = examine([*two, server.url])
        for guest in guests:
            guest.close()
    assert "of 10 clients" in only(found, "warning", "clients").found


@odd("--bind", "0.0.0.0", "--protected-mode", "no")
def test_access_without_a_password(two: list[str], odd_one: Servers) -> None:
    finding = only(examine([*two, odd_one[0].url]), "error", "access")
    assert finding.found == "bind 0.0.0.0, protected-mode no, and no password"
    odd_one[0].execute("CONFIG", "SET", "protected-mode", "yes")
    assert names(examine([*two, odd_one[0].url]), "error") == set()
    odd_one[0].execute("CONFIG", "SET", "protected-mode", "no")
    odd_one[0].execute("CONFIG", "SET", "requirepass", "secret-one")
    shut = Node(path=odd_one[0].path, password="secret-one")
    assert names(examine([*two, shut]), "error") == set()


def test_tls_that_checks_nothing_or_fails(nodes: Servers, two: list[str]) -> None:
    with TlsFront(nodes[2].url) as front:
        url = front.url.replace("redis://", "rediss://")
        loose = only(examine([*two, f"{url}?ssl_cert_reqs=none"]), "warning", "tls")
        assert loose.found == "any certificate is taken"
        assert "TLS failed" in only(examine([*two, url]), "error", "reach").found


RIGHTS = "~app:* ~quorlock:* +info +set +get +del +pttl +pexpire +eval +evalsha +time"


CALLING = "+subscribe +publish +zadd +zpopmin +zrange +zrank +zrem +zcard &quorlock:inbox:*"


def lowly(server: Any, rights: str) -> Node:
    server.execute("ACL", "SETUSER", "lowly", "reset", "on", ">pass-word", *rights.split())
    server.execute("ACL", "SETUSER", "default", "-@all", "+ping", "resetpass", ">other")
    return Node(path=server.path, username="lowly", password="pass-word")


@pytest.mark.parametrize("word", RIGHTS.split())
def test_every_right_that_is_missing(two: list[str], word: str) -> None:
    """A command that is denied is named; no check fails for want of it."""
    rights = " ".join(right for right in RIGHTS.split() if right != word)
    with Servers(1) as (server,):
        found = examine([*two, lowly(server, rights)], prefix="app:")
    (commands,) = [f for f in found["error"] if f.check == "commands"]
    assert "NOPERM" in commands.found
    if word.startswith("+"):
        assert f"{word[1:]}:" in commands.found
    assert "pass-word" not in str(found)
    assert names(found, "error") == {"commands"}


def test_a_user_with_no_more_than_he_needs(two: list[str]) -> None:
    """Checks without a permission are reported, and are no errors."""
    with Servers(1, options=("--appendonly", "yes", "--appendfsync", "always")) as (server,):
        node = lowly(server, f"{RIGHTS} {CALLING}")
        assert names(examine([*two, node], prefix="app:"), "error", "warning", "unknown") == set()
        found = examine([*two, node.__replace__(durable=True)], prefix="app:")
    assert "refuses CONFIG GET appendfsync" in only(found, "unknown", "persistence").found


@pytest.mark.parametrize("word", CALLING.split())
def test_every_right_to_call_waiters_that_is_missing(two: list[str], word: str) -> None:
    """The lock works, and the order of its waiters is at risk; the fix names the rights."""
    rights = [right for right in CALLING.split() if right != word]
    with Servers(1) as (server,):
        node = lowly(server, " ".join([RIGHTS, *rights]))
        finding = only(examine([*two, node], prefix="app:"), "warning", "waiting")
        settings = {"prefix": "app:", "waiting": "poll"}
        assert names(examine([*two, node], **settings), "error", "warning", "unknown") == set()
    assert finding.found.startswith(f"1 of 3 nodes cannot call waiters ({server.path}: NOPERM ")
    assert finding.found.endswith("; the others do it, as long as they are up")
    assert finding.fix.startswith(f"grant {CALLING} (")


SHARING = "+time +zadd +zcard +zrange +zrem +zremrangebyscore +zscore"


@pytest.mark.parametrize("word", SHARING.split()[1:])  # every client needs +time
def test_every_right_to_share_locks_that_is_missing(two: list[str], word: str) -> None:
    """The doctor names the nodes, and warns of nothing: few users share locks."""
    rights = [right for right in SHARING.split() if right != word]
    with Servers(1) as (server,):
        node = lowly(server, " ".join([RIGHTS, *rights]))
        found = examine([*two, node], prefix="app:", waiting="poll")
    assert names(found, "error", "warning", "unknown") == set()
    (sharing,) = [finding.found for finding in found["ok"] if finding.check == "sharing"]
    assert sharing.startswith(f"1 of 3 nodes cannot share locks ({server.path}: NOPERM ")
    assert sharing.endswith(f"; shared=True needs {SHARING} (docs/how-to/acl.md)")


def test_the_report_and_its_status(bare_shell: Shell, nodes: Servers, tmp_path: Path) -> None:
    config = tmp_path / "quorlock.toml"

    def report(urls: list[str], *words: str) -> tuple[int, str]:
        config.write_text(f"nodes = {json.dumps(urls)}\nnode_timeout = 1.0\n")
        done = bare_shell.run("doctor", *words)
        assert done.stderr == ""
        assert "\x1b" not in done.stdout
        return done.returncode, done.stdout

    good, even, bad = nodes.urls[:3], nodes.urls[:2], [*nodes.urls[:2], f"unix://{tmp_path}/no"]
    assert report(good)[0] == report(good, "--strict")[0] == report(even)[0] == 0
    assert report(even, "--strict")[0] == report(bad)[0] == 1
    text = report(bad)[1]
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= 80
    assert [line for line in text.splitlines() if line and line[0] != " "] == [
        "error",
        "ok, of those that answer",
        "not fit for locks: 1 error",
    ]


def test_the_json_is_as_its_schema_has_it(shell: Shell) -> None:
    schema = json.loads((DOCS / "doctor.schema.json").read_text())
    reported = json.loads(shell.answer("doctor", "--json"))
    assert set(reported) == set(schema["properties"]) == set(schema["required"])
    assert reported["verdict"] in schema["properties"]["verdict"]["enum"]
    finding = schema["$defs"]["finding"]
    for one in reported["findings"]:
        assert list(one) == finding["required"] == list(finding["properties"])
        assert one["level"] in finding["properties"]["level"]["enum"]
        assert all(isinstance(value, str) for value in one.values())


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({"TERM": "xterm"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals(shell: Shell, variables: dict[str, str], coloured: bool) -> None:
    reader, terminal = pty.openpty()
    try:
        done = shell.run(
            "doctor", given=variables, capture_output=False, stdout=terminal, stderr=terminal
        )
        assert done.returncode == 0
        shown = os.read(reader, 65_536)
    finally:
        os.close(reader)
        os.close(terminal)
    assert (b"\x1b[" in shown) is coloured


def test_the_page_lists_every_check() -> None:
    """The page has the order of the report."""
    page = (DOCS / "doctor.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [check.name for check in CHECKS]


def test_it_waits_until_a_quorum_votes(bare_shell: Shell, mortal_nodes: Servers) -> None:
    """The command returns at once then, without a report."""
    for node in mortal_nodes[:3]:
        node.kill()
    nodes = ("--nodes", ",".join(mortal_nodes.urls))
    waiting = bare_shell.start("doctor", "--wait", "60s", *nodes)
    try:
        assert until(lambda: b"name=quorlock" in mortal_nodes[4].execute("CLIENT", "LIST"), 30)
        assert waiting.poll() is None
        for node in mortal_nodes[:3]:
            node.restart()
            node.born_empty()
        assert waiting.communicate(timeout=30) == ("", "")
    finally:
        waiting.kill()
        waiting.communicate()
    assert waiting.returncode == 0
    assert bare_shell.answer("doctor", "--wait", "60s", *nodes) == ""
    assert not any(node.keys() for node in mortal_nodes)


def test_after_the_wait_it_reports(bare_shell: Shell) -> None:
    nobody = ",".join(f"redis://127.0.0.1:{port}" for port in (1, 2, 3))
    done = bare_shell.run("doctor", "--wait", "1s", "--nodes", nobody)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("not fit for locks")
    assert done.stderr == ""


def test_a_terminal_shows_what_it_waits_for(bare_shell: Shell) -> None:
    keys, terminal = pty.openpty()
    try:
        bare_shell.run(
            *("doctor", "--wait", "1s", "--nodes", "redis://127.0.0.1:1"),
            capture_output=False,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
        )
        shown = os.read(keys, 65_536).decode()
    finally:
        os.close(keys)
        os.close(terminal)
    assert "\r\x1b[Kwaiting, 1 s left: 0 of 1 nodes answered" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_node_that_plays_back_what_it_was_sent(two: list[str]) -> None:
    """Our password in INFO and in every error, whole and in part; another's token in an error."""
    secret, token = "canary-Pa55word", "0123456789abcdef" * 2

    def plays_back(words: list[bytes]) -> bytes:
        if words[0] == b"INFO":
            text = f"role:{secret}\r\nredis_mode:{secret[:-2]}\r\nrun_id:{'1' * 40}\r\n".encode()
            return bulk(text)
        if words[0] in (b"AUTH", b"PING"):
            return b"+PONG\r\n"
        return f"-ERR no '{secret}' '{secret[3:]}' '{secret[:9]}' '{token}'\r\n".encode()

    with Impostor(answers(plays_back)) as odd:
        found = examine([*two, odd.url.replace("unix://", f"unix://:{secret}@")])
    reported = str(found)
    assert "ERR no" in reported
    assert not any(secret[i : i + 6] in reported for i in range(len(secret) - 5))
    assert token not in reported
