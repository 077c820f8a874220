"""`--permits`: a semaphore for `run`, `acquire` and `status`."""

from __future__ import annotations

import json

from quorlock import Redlock
from quorlock._cli.exit_status import EX_TEMPFAIL, EX_USAGE
from quorlock.testing.servers import Servers
from tests.servers.cli import schema
from tests.servers.cli.command import Shell, at_last
from tests.servers.cli.test_status import SCHEMA


def test_run_has_a_permit(shell: Shell, nodes: Servers) -> None:
    """The command has its number, also in an enclosing run; a full pool is busy."""
    told = "echo $QUORLOCK_RESOURCE $QUORLOCK_PERMIT"
    with Redlock(nodes.urls) as redlock:
        first = redlock.lock("pool#0", ttl=20).acquire()
        said = shell.answer("run", "pool", "--permits", "2", "-c", told)
        assert said.strip() == "pool#1 1"
        second = redlock.lock("pool#1", ttl=20).acquire()
        busy = shell.complaint(EX_TEMPFAIL, "run", "pool", "--permits", "2", "-n", "-c", told)
        assert "'pool': none of 2 permits was granted (" in busy
        first.release()
        second.release()
    plain = "echo ${QUORLOCK_PERMIT-none}"
    given = {"QUORLOCK_PERMIT": "7"}
    assert shell.answer("run", "pool", "-c", plain, given=given).strip() == "none"
    assert at_last(nodes, "pool#1", None)


def test_acquire_names_the_permit(shell: Shell, nodes: Servers) -> None:
    """`extend` and `release` take the name that it prints."""
    facts = json.loads(shell.answer("acquire", "pool", "--permits", "1", "--json"))
    assert schema.problems(facts, SCHEMA["$defs"]["acquired"], SCHEMA) == []
    assert (facts["resource"], facts["permit"]) == ("pool#0", 0)
    assert at_last(nodes, "pool#0", facts["token"])
    text = shell.answer("status", "pool", "--permits", "2")
    assert text.startswith("'pool': 1 of 2 permits held\n'pool#0': held by ")
    assert "\n'pool#1': free" in text
    status = shell.run("status", "pool", "--permits", "2", "--exit-code")
    assert status.returncode == 0
    status = shell.run("status", "pool", "--permits", "1", "--exit-code", "--json")
    assert status.returncode == EX_TEMPFAIL
    assert [one["resource"] for one in json.loads(status.stdout)["resources"]] == ["pool#0"]
    shell.answer("extend", "pool#0", "--token", facts["token"])
    shell.answer("release", "pool#0", "--token", facts["token"])
    exported = shell.answer("acquire", "pool", "--permits", "1", "--format", "shell")
    assert "export QUORLOCK_PERMIT=0" in exported
    assert "export QUORLOCK_RESOURCE='pool#0'" in exported


def test_wrong_usage(shell: Shell) -> None:
    """Each is refused with the reason."""
    for words, reason in (
        (("acquire", "a", "--permits", "2"), "--format shell or json"),
        (("acquire", "a", "--permits", "2", "--and", "b", "--json"), "exclude each other"),
        (("run", "a", "--permits", "2", "--fencing", "-c", ":"), "permits have no fences"),
        (("run", "a", "--permits", "2", "--once-per", "1h", "-c", ":"), "exclude each other"),
        (("run", "a", "--permits", "0", "-c", ":"), "1<=x<=1024"),
        (("status", "a", "b", "--permits", "2"), "needs one RESOURCE"),
    ):
        assert reason in shell.complaint(EX_USAGE, *words)
