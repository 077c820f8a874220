"""Three nodes as the tutorial and the README start and use them.

The servers of docs/tutorial/three-nodes.md are started with the options of its compose file.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import yaml

from quorlock import Node
from quorlock.testing.servers import Servers
from tests.harness.support.pages import DOCS, titled

if TYPE_CHECKING:
    from tests.servers.cli.command import Shell

FILES = titled("tutorial/three-nodes.md")


def test_the_first_lock_is_granted_at_once(bare_shell: Shell) -> None:
    bare_shell.be_patient()
    services = yaml.safe_load(FILES["compose.yaml"])["services"].values()
    commands = [shlex.split(service["command"]) for service in services]
    ports = [command[command.index("--port") + 1] for command in commands]
    assert [service["ports"] for service in services] == [[f"127.0.0.1:{p}:{p}"] for p in ports]
    named = re.search(r"^export QUORLOCK_NODES=(\S+)$", FILES["start"], re.MULTILINE)
    assert named
    assert [Node.from_url(url).address for url in named[1].split(",")] == [
        f"127.0.0.1:{port}" for port in ports
    ]
    (options,) = {tuple(words[3:]) for words in commands}  # the same beside the port
    # Images listen on all addresses of the container and have no protected mode.
    image = ("--protected-mode", "no")
    with Servers(3, tcp=True, options=[*image, *options]) as started:
        text = named[1]
        for port, server in zip(ports, started, strict=True):
            text = text.replace(f":{port}", f":{server.port}")
        bare_shell.variables["QUORLOCK_NODES"] = text
        assert "are kept out" in bare_shell.run("doctor").stdout
        lines = (FILES["fresh"] + FILES["doctor"]).splitlines()
        marked, report, locked = [bare_shell.answer(*shlex.split(line)[1:]) for line in lines]
        assert marked.count(": marked: it votes at once") == 3
        assert report.endswith("\nfit for locks")
        assert locked == "locked"


def test_the_commands_of_the_readme(bare_shell: Shell, nodes: Servers) -> None:
    """All succeed, on nodes that are marked as new already: without a terminal it cannot ask."""
    bare_shell.be_patient()
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Run it on three nodes\n")[2]
    export, *lines = section.partition("```text\n")[2].partition("```")[0].splitlines()
    name, named = export.removeprefix("export ").split("=")
    assert len(named.split(",")) == 3
    bare_shell.variables[name] = ",".join(nodes.urls[:3])
    assert len(lines) == 4
    for line in lines:
        command = line.partition("#")[0].replace("./backup --all", "true")
        bare_shell.answer(*shlex.split(command)[1:])
