"""docs/how-to/run-the-nodes.md is true: its files are read from the page and used.

Containers and clusters cannot be had here. What their files start is started without them, and what
the text says of the rest is looked up in the parsed file.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from quorlock import Node
from quorlock.testing.servers import Servers, find_binary
from tests.harness.support.pages import DOCS, titled
from tests.servers.cli.command import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "how-to/run-the-nodes.md"
FILES = titled(PAGE)
LOGINS = ("quorlock:LOCK-PASSWORD", "operator:OPERATOR-PASSWORD")
# Until a node votes, in seconds: docs/contributing/decisions/0013-restart-guard.md.
QUARANTINE = 30 * 1.01 + 0.002 + 1


def urls(ports: list[int], login: str) -> str:
    return ",".join(f"redis://{login}@127.0.0.1:{port}" for port in ports)


def conf(folder: Path) -> Path:
    """Write the configuration. Here it listens on this machine only."""
    path = folder / "lock.conf"
    text, changed = re.subn(r"^bind .*$", "bind 127.0.0.1", FILES["lock.conf"], flags=re.MULTILINE)
    assert changed == 1
    path.write_text(text)
    return path


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[list[int]]:
    """Three servers with the configuration of the page, as they are after their start."""
    with Servers(3, tcp=True, options=["--include", str(conf(tmp_path))]) as started:
        yield [server.port for server in started]


def test_the_doctor_is_content_with_the_configuration(
    ports: list[int], bare_shell: Shell, tmp_path: Path
) -> None:
    """No node votes before `nodes fresh`; after it there is neither an error nor a warning."""
    bare_shell.be_patient()
    user, operator = (("--nodes", urls(ports, login)) for login in LOGINS)
    assert "are kept out: no lock" in bare_shell.run("doctor", *user).stdout
    assert bare_shell.answer("nodes", "fresh", "--yes", *operator).count(": marked") == 3
    assert bare_shell.answer("doctor", "--wait", "60s", *user) == ""
    for login in (user, operator):
        report = bare_shell.answer("doctor", "--strict", *login)
        assert "grant +" not in report, "each check has the permissions that it needs"
    assert bare_shell.answer("run", "nightly", *user, "--", "echo", "held") == "held"
    stranger = ("--nodes", ",".join(f"redis://127.0.0.1:{port}" for port in ports))
    assert "NOAUTH" in bare_shell.run("run", "nightly", *stranger, "--", "true").stderr


def test_the_users_rule_is_that_of_its_page() -> None:
    """All keys of such nodes are locks (`~*`), and the optional words are granted."""
    page = (DOCS / "how-to/acl.md").read_text()
    words, to_wait = re.findall(r"^ACL SETUSER quorlock (.*)$", page, re.MULTILINE)
    words = words.replace("reset ", "").replace(">PASSWORD", ">LOCK-PASSWORD")
    words = words.replace("~app:* ~quorlock:*", "~*")
    (to_share,) = re.findall(r"^\+time \+z.+$", page, re.MULTILINE)
    more = [word for word in to_share.split() if word not in f"{words} {to_wait}".split()]
    rule = " ".join([words, "+client|tracking +client|caching", to_wait, *more])
    assert f"\nuser quorlock {rule}\n" in FILES["lock.conf"]


# --- systemd -------------------------------------------------------------------------------------


def unit(folder: Path) -> str:
    """Return the unit, with a program and a file that are here."""
    text = FILES["valkey-lock@.service"].replace("/usr/bin/valkey-server", find_binary())
    return text.replace("/etc/valkey/lock.conf", str(conf(folder)))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    (tmp_path / "valkey-lock@.service").write_text(unit(tmp_path))
    instance = tmp_path / "valkey-lock@6379.service"
    instance.symlink_to("valkey-lock@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(instance)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "valkey-lock" in line]
    assert (done.returncode, complaints) == (0, []), done


def test_the_command_of_the_unit_starts_a_node(tmp_path: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(unit(tmp_path))
    section = parser["Service"]
    name, path = section["LoadCredential"].split(":")
    assert Path(path).name == name
    command = section["ExecStart"].replace("%d/", f"{tmp_path}/").replace("%i", "0")
    # Without a port, so that no other process can have it: a socket instead.
    with subprocess.Popen(
        [*shlex.split(command), "--unixsocket", "node.sock"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            said = next((line for line in server.stdout if "Ready to accept" in line), "")
            assert "unix" in said
        finally:
            server.kill()


# --- Docker Compose ------------------------------------------------------------------------------


def services() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(FILES["compose.yaml"])["services"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", sorted(services()))
def test_compose_starts_a_node_with_the_configuration(name: str) -> None:
    service = services()[name]
    (volume,) = service["volumes"]
    source, inside, mode = volume.split(":")
    assert (source, mode) == ("./lock.conf", "ro")
    program, file, *options = service["command"]
    assert (program, file) == ("valkey-server", inside)
    assert options == ["--port", str(service["environment"]["PORT"])]
    assert "valkey-cli -p $$PORT ping" in service["healthcheck"]["test"]


def test_compose_publishes_the_ports_that_the_text_names() -> None:
    published = [port for service in services().values() for port in service["ports"]]
    assert published == [f"127.0.0.1:{port}:{port}" for port in (6381, 6382, 6383)]
    named = re.search(
        r"--wait\nexport QUORLOCK_NODES=(\S+)\nquorlock nodes fresh --yes\n",
        (DOCS / PAGE).read_text(),
    )
    assert named
    addresses = [Node.from_url(url).address for url in named[1].split(",")]
    assert addresses == [mapping.rpartition(":")[0] for mapping in published]


# --- Kubernetes ----------------------------------------------------------------------------------


def objects() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(FILES["lock.yaml"])}


def test_clients_name_each_pod() -> None:
    found = objects()
    service, pods = found["Service"], found["StatefulSet"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    named = re.search(r"lock.yaml\nexport QUORLOCK_NODES=(\S+)", (DOCS / PAGE).read_text())
    assert named
    name = pods["metadata"]["name"]
    assert [Node.from_url(url).host for url in named[1].split(",")] == [
        f"{name}-{number}.{service['metadata']['name']}"
        for number in range(pods["spec"]["replicas"])
    ]


def test_the_pods_are_apart_and_selected() -> None:
    found = objects()
    spec = found["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    pod = spec["template"]["spec"]
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = pod["topologySpreadConstraints"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    selectors = [spec["selector"], term["labelSelector"], spread["labelSelector"]]
    selectors.append(found["PodDisruptionBudget"]["spec"]["selector"])
    assert [one["matchLabels"] for one in selectors] == [labels] * 4
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_a_pod_is_ready_when_its_node_votes() -> None:
    pod = objects()["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["readinessProbe"]["initialDelaySeconds"] > QUARANTINE
    assert "livenessProbe" not in container
    assert "volumeClaimTemplates" not in objects()["StatefulSet"]["spec"]


def test_the_pod_starts_a_node_with_the_secret() -> None:
    pod = objects()["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    (volume,) = pod["volumes"]
    program, file = container["command"]
    assert (mount["name"], program) == (volume["name"], "valkey-server")
    assert file == f"{mount['mountPath']}/lock.conf"
    secret = volume["secret"]["secretName"]
    assert f"secret generic {secret} --from-file=lock.conf" in (DOCS / PAGE).read_text()
