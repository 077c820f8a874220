"""docs/how-to/recipes/ is true: what stands in its blocks is taken from there and used, on hosts
that are folders. What cannot be had here (cron, systemd as process 1, a cluster) is stood in for
by what it does with these lines: an empty environment, TERM to process 1 and KILL after the grace.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quorlock._cli import exit_status
from quorlock.fencing import FenceTable
from quorlock.testing.servers import Servers
from tests.harness.support.pids import is_gone
from tests.harness.support.wait import until
from tests.servers.cli.command import PATIENCE, SRC, keys_stay
from tools.snippets import read_blocks

PAGES = Path(__file__).parents[3] / "docs" / "how-to" / "recipes"
FENCE = re.compile(
    r'^```(?P<language>\w+) title="(?P<title>\S+)"\n(?P<source>.*?)^```$', re.MULTILINE | re.DOTALL
)
BLOCKS = {
    f"{found['language']} {found['title']}": found["source"]
    for page in sorted(PAGES.glob("*.md"))
    for found in FENCE.finditer(page.read_text())
}
UNITS = [title for title in BLOCKS if title.startswith("ini ")]
RETRYING_IS_NO_USE = {exit_status.EX_USAGE, exit_status.EX_NOPERM, exit_status.EX_CONFIG}
# A program that runs until it gets TERM, and logs what it sees.
PROGRAM = """\
#!/bin/sh
trap 'echo got TERM >> {log}; exit 143' TERM
echo begun $$ >> {log}
while :; do sleep 0.01; done
"""


class Host:
    """A folder with what the recipes take for granted: quorlock, the file that names the nodes, and
    a command for each that they run, which writes its words into a log that all hosts share.
    """

    def __init__(self, home: Path, urls: list[str]) -> None:
        self.home = home
        self.log = home / "log"
        self.log.touch()
        self.path = f"{home}/usr/local/bin:{home}:/usr/bin:/bin"
        self.environment = {"PATH": self.path, "QUORLOCK_CONFIG": f"{home}/etc/quorlock.toml"}
        self._started: list[subprocess.Popen[str]] = []
        for folder in ("etc", "srv/shared", "usr/local/bin"):
            (home / folder).mkdir(parents=True)
        self.name_nodes(urls)
        (home / "etc/quorlock").symlink_to(".")
        lines = f"import sys\nsys.path.insert(0, {str(SRC)!r})\nfrom quorlock.__main__ import main"
        self.put("usr/local/bin/quorlock", f"#!{sys.executable}\n{lines}\nsys.exit(main())\n")

    def name_nodes(self, urls: list[str]) -> None:
        # Patient: a machine on which many tests run is slower than a network.
        patience = "node_timeout = 1.0\nconnect_timeout = 10.0\n"
        file = self.home / "etc/quorlock.toml"
        file.write_text(f"nodes = {json.dumps(urls)}\n{patience}")

    def put(self, name: str, script: str) -> Path:
        """A script of this name."""
        path = self.home / name
        path.write_text(script)
        path.chmod(0o755)
        return path

    def put_job(self, name: str, also: str = "") -> None:
        """One that is done at once."""
        self.put(name, f'#!/bin/sh\necho "$0" "$@" >> {self.log}\n{also}\n')

    def put_program(self, name: str) -> None:
        """Write a program that runs until it is stopped."""
        self.put(name, PROGRAM.format(log=self.log))

    def here(self, text: str) -> str:
        """Replace the folders of the recipe by this one."""
        return re.sub(r"(?<![\w.])/(etc|srv|usr/local)/", rf"{self.home}/\1/", text)

    def start(self, words: list[str], **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words,
            env={**self.environment, **environment},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, words: list[str], **environment: str) -> tuple[int, str, str]:
        """Return the status, stdout and stderr."""
        return ended(self.start(words, **environment))

    def lines(self, word: str = "") -> list[str]:
        """Return the lines of the log that contain this."""
        return [line for line in self.log.read_text().splitlines() if word in line]

    def close(self) -> None:
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for line in self.lines("begun"):
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[1]), signal.SIGKILL)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, complained = process.communicate(timeout=30)
    return process.returncode, said, complained


@pytest.fixture
def host(nodes: Servers, tmp_path: Path) -> Iterator[Host]:
    it = Host(tmp_path, nodes.urls)
    try:
        yield it
    finally:
        it.close()


def keys(nodes: Servers) -> bool:
    """Is there any lock?"""
    return any(node.keys() for node in nodes)


def test_each_block_with_a_name_is_used() -> None:
    """Each named block is used by a test below; each script and each setup has a name."""
    tests = Path(__file__).read_text()
    assert BLOCKS
    assert [title for title in BLOCKS if title not in UNITS and f'"{title}"' not in tests] == []
    kinds = {title.split()[0] for title in BLOCKS}
    for page in PAGES.glob("*.md"):
        nameless = [line for line in page.read_text().splitlines() if line.startswith("```")]
        assert kinds & {line.removeprefix("```") for line in nameless} == set(), page


# --- cron ------------------------------------------------------------------------------------


def cron_job(host: Host) -> tuple[list[str], dict[str, str]]:
    """Return the command of the cron job, and the variables of the crontab: its whole
    environment.
    """
    *lines, job = [line for line in BLOCKS["crontab nightly"].splitlines() if line]
    variables = dict(line.split("=", 1) for line in lines)
    words = ["/usr/bin/env", "-i", "HOME=/", "LOGNAME=nobody", "SHELL=/bin/sh"]
    words += [f"{name}={host.here(value)}" for name, value in variables.items()]
    return [*words, "/bin/sh", "-c", host.here(job.split(maxsplit=5)[5])], variables


def test_cron_runs_it_on_one_of_three_hosts(host: Host, nodes: Servers) -> None:
    """The others say nothing, for cron would mail it; nor does one whose clock is late."""
    host.put_job("srv/backup")
    words, variables = cron_job(host)
    assert "MAILTO" in variables
    hosts = [host.start(words) for _ in range(3)]
    assert until(lambda: sum(it.poll() is not None for it in hosts) == 2, PATIENCE)
    assert until(lambda: host.lines("backup"), PATIENCE)
    (holder,) = [it for it in hosts if it.poll() is None]
    assert [ended(it) for it in hosts if it is not holder] == [(0, "", "")] * 2
    assert host.run(words) == (0, "", "")  # late: the job is long done, and the lock is held on
    os.killpg(holder.pid, signal.SIGTERM)  # cron's shell as well: not a minute of it here
    ended(holder)
    assert host.lines() == [f"{host.home}/srv/backup --all"]
    assert until(lambda: not keys(nodes), PATIENCE)


def test_what_keeps_a_cron_job_from_running_is_said(host: Host) -> None:
    words, _ = cron_job(host)
    host.name_nodes([f"redis://127.0.0.1:{port}" for port in (1, 2, 3)])
    status, said, complained = host.run(words)
    assert (status, said) == (exit_status.EX_UNAVAILABLE, "")
    assert "nightly" in complained


# --- once a day ------------------------------------------------------------------------------


def test_once_a_day_is_once_though_all_come(host: Host) -> None:
    host.put_job("report")
    words = ["sh", "-c", host.here(BLOCKS["sh once-a-day"])]
    assert [ended(it) for it in [host.start(words) for _ in range(3)]] == [(0, "", "")] * 3
    assert len(host.lines("report")) == 1


def test_once_a_day_a_failure_is_tried_again(host: Host) -> None:
    words = ["sh", "-c", host.here(BLOCKS["sh once-a-day"])]
    host.put_job("report", "exit 3")
    assert host.run(words)[0] == 3
    host.put_job("report")
    assert host.run(words)[0] == 0
    assert len(host.lines("report")) == 2


# --- systemd ---------------------------------------------------------------------------------


def unit(title: str, host: Host) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(host.here(BLOCKS[title]))
    return parser


def service(title: str, host: Host) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """ExecStart, its variables, and the whole section."""
    section = dict(unit(title, host)["Service"])
    name, path = section["LoadCredential"].split(":")
    variable, value = section["Environment"].split("=", 1)
    assert value == f"%d/{name}"
    return shlex.split(section["ExecStart"]), {variable: path}, section


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_finds_no_fault_with_the_units(host: Host) -> None:
    for name in ("srv/backup", "srv/scheduler"):
        host.put_job(name)
    files = []
    for title in UNITS:
        files.append(host.home / title.split()[1])
        files[-1].write_text(host.here(BLOCKS[title]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, about(files, done.stderr)) == (0, []), done


def about(files: list[Path], complaints: str) -> list[str]:
    """Return the messages about our units, without those about this machine."""
    return [line for line in complaints.splitlines() if any(file.name in line for file in files)]


def test_the_timers_service_is_well_though_another_holds_it(host: Host) -> None:
    host.put_job("srv/backup")
    words, variables, section = service("ini nightly.service", host)
    first = host.start(words, **variables)
    assert until(lambda: host.lines("backup"), PATIENCE)
    status, _, complained = host.run(words, **variables)
    assert str(status) in section["SuccessExitStatus"].split()
    assert "is held by " in complained
    first.terminate()  # `systemctl stop`: not held on for a minute
    assert ended(first)[0] == 0


@pytest.mark.parametrize("title", [title for title in UNITS if title.endswith("service")])
def test_a_service_that_is_stopped_is_well(title: str, host: Host, nodes: Servers) -> None:
    """TERM goes only to the main process: the command gets one, and the lock is released at
    once.
    """
    for name in ("srv/backup", "srv/scheduler"):
        host.put_program(name)
    words, variables, section = service(title, host)
    assert section["KillMode"] == "mixed"
    running = host.start(words, **variables)
    assert until(lambda: host.lines("begun"), PATIENCE)
    running.terminate()
    assert str(ended(running)[0]) in section["SuccessExitStatus"].split()
    assert len(host.lines("got TERM")) == 1
    assert not keys_stay(nodes)


def test_a_service_is_not_started_again_where_that_is_of_no_use(host: Host) -> None:
    _, _, section = service("ini scheduler.service", host)
    assert {int(it) for it in section["RestartPreventExitStatus"].split()} == RETRYING_IS_NO_USE


# --- as process 1 of a container -------------------------------------------------------------

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc"]
if os.geteuid() != 0:
    UNSHARE.append("--map-root-user")


def may_unshare() -> bool:
    with suppress(OSError):
        return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    return False


in_a_container = pytest.mark.skipif(not may_unshare(), reason="no process 1 can be had here")


class Container:
    """One whose process 1 is this command, as a runtime has it."""

    def __init__(self, host: Host, words: list[str]) -> None:
        self.runtime = host.start([*UNSHARE, *words])
        file = Path(f"/proc/{self.runtime.pid}/task/{self.runtime.pid}/children")
        assert until(lambda: file.read_text() or self.runtime.poll() is not None, PATIENCE)
        self.one = int(file.read_text())

    def send(self, number: int) -> None:
        os.kill(self.one, number)


def docker_command(host: Host) -> list[str]:
    lines = dict(
        line.split(maxsplit=1) for line in host.here(BLOCKS["dockerfile nightly"]).splitlines()
    )
    return [*json.loads(lines["ENTRYPOINT"]), *json.loads(lines["CMD"])]


def pod(title: str, host: Host) -> list[str]:
    """The command of its container."""
    found = re.search(r"command: (\[.*?\])", BLOCKS[title], re.DOTALL)
    assert found is not None
    return list(json.loads(host.here(found[1])))


def container_commands(host: Host) -> dict[str, list[str]]:
    return {
        "docker": docker_command(host),
        "cronjob": pod("yaml cronjob", host),
        "deployment": pod("yaml deployment", host),
    }


@in_a_container
@pytest.mark.parametrize("which", ["docker", "cronjob", "deployment"])
def test_process_1_passes_term_on_and_gives_the_lock_back(
    which: str, host: Host, nodes: Servers
) -> None:
    for name in ("srv/nightly", "srv/scheduler"):
        host.put_program(name)
    container = Container(host, container_commands(host)[which])
    assert until(lambda: host.lines("begun"), PATIENCE)
    assert host.lines("begun") != ["begun 1"]
    container.send(signal.SIGTERM)
    assert ended(container.runtime)[0] == 128 + signal.SIGTERM
    assert len(host.lines("got TERM")) == 1
    assert not keys_stay(nodes)
    host.log.write_text("")  # the numbers in it are not ours


@in_a_container
def test_after_the_grace_nothing_is_left_of_a_command_that_ignores_term(host: Host) -> None:
    """KILL to process 1: the kernel ends the others. The lock stays for its ttl."""
    mark = f"sleep-{os.getpid()}"
    shutil.copy("/bin/sleep", host.home / mark)
    host.put("srv/scheduler", f"#!/bin/sh\ntrap '' TERM\n./{mark} 1000 & ./{mark} 1000")
    container = Container(host, container_commands(host)["deployment"])
    assert until(lambda: len(named(mark)) == 2, PATIENCE)
    inside = named(mark)
    container.send(signal.SIGTERM)
    container.send(signal.SIGKILL)
    ended(container.runtime)
    assert until(lambda: all(is_gone(pid) for pid in inside), PATIENCE)


def named(name: str) -> list[int]:
    """The processes of this name, in whatever container."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if path.read_text().strip() == name[:15]:
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("title", ["yaml cronjob", "yaml deployment"])
def test_the_secret_is_where_the_command_looks_for_it(title: str) -> None:
    text = BLOCKS[title]
    (mounted,) = re.findall(r"mountPath: ([^,}]+)", text)
    assert f"{{name: QUORLOCK_CONFIG, value: {mounted}/quorlock.toml}}" in text
    page = (PAGES / "containers.md").read_text()
    (secret,) = set(re.findall(r"secretName: (\w+)", page))
    assert f"secret generic {secret} --from-file=quorlock.toml" in page


def test_a_job_is_not_tried_again_where_that_is_of_no_use() -> None:
    found = re.search(r"operator: In, values: (\[.*?\])", BLOCKS["yaml cronjob"])
    assert found is not None
    assert set(json.loads(found[1])) == RETRYING_IS_NO_USE


def test_two_jobs_that_overlap_run_one_after_the_other(host: Host) -> None:
    host.put_program("srv/nightly")
    words = pod("yaml cronjob", host)
    assert_takes_turns(host, words)


def test_one_pod_leads_and_the_next_when_it_ends(host: Host) -> None:
    host.put_program("srv/scheduler")
    assert_takes_turns(host, pod("yaml deployment", host))


def assert_takes_turns(host: Host, words: list[str], **environment: str) -> None:
    """Check that the second of two begins when the first has ended."""
    pods = [host.start(words, **environment) for _ in range(2)]
    assert until(lambda: host.lines("begun"), PATIENCE)
    leader = int(host.lines("begun")[0].split()[1])
    assert len(host.lines("begun")) == 1
    os.kill(leader, signal.SIGTERM)
    assert until(lambda: len(host.lines("begun")) == 2, PATIENCE)
    assert host.lines()[1] == "got TERM"
    os.kill(int(host.lines("begun")[1].split()[1]), signal.SIGTERM)
    assert [ended(it)[0] for it in pods] == [143, 143]


# --- deploys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["yaml .gitlab-ci.yml", "yaml .github/workflows/deploy.yml"])
def test_a_cancelled_pipeline_signals_the_deploy(title: str, host: Host, nodes: Servers) -> None:
    """A signal to the shell that a runner starts for the line reaches the command."""
    found = re.search(r"^ *- (?:run: )?(exec quorlock .*)$", BLOCKS[title], re.MULTILINE)
    assert found is not None
    host.put_program("deploy")
    step = host.start(["bash", "-e", "-c", found[1]])
    assert until(lambda: host.lines("begun"), PATIENCE)
    step.terminate()
    assert ended(step)[0] == 143
    assert len(host.lines("got TERM")) == 1
    assert not keys_stay(nodes)


def test_a_deploy_script_takes_the_lock_by_itself(host: Host, nodes: Servers) -> None:
    """And takes it once."""
    script = str(host.put("deploy", BLOCKS["sh deploy"]))
    both = [host.start([script, "web", "a b"]) for _ in range(2)]
    assert [ended(it) for it in both] == [(0, "deploying web a b\n", "")] * 2
    assert not keys_stay(nodes)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_a_makefile_takes_it(host: Host) -> None:
    (host.home / "Makefile").write_text(BLOCKS["make deploy"])
    status, said, complained = host.run(["make", "-s", "deploy"])
    assert (status, said.split()[-1], complained) == (0, "deploying", "")


def test_migrations_wait_for_each_other(host: Host) -> None:
    host.put_program("alembic")
    assert_takes_turns(host, ["sh", "-c", BLOCKS["sh migrate"]])


def test_a_leader_is_followed(host: Host) -> None:
    host.put_program("poller")
    assert_takes_turns(host, ["sh", "-c", BLOCKS["sh leader"]])


def test_a_migration_can_be_fenced(host: Host) -> None:
    """The number in its environment is its fence; that of an earlier holder is refused."""
    database = sqlite3.connect(host.home / "shop.db")
    FenceTable(sqlite3.paramstyle).create(database)
    database.executescript("CREATE TABLE orders (total); INSERT INTO orders VALUES (NULL)")
    blocks = [block for block in read_blocks(PAGES / "deploys.md") if block.language == "python"]
    (source,) = [block.source for block in blocks if block.no_run is None]
    script = host.put("backfill.py", f"import sys\nsys.path.insert(0, {str(SRC)!r})\n{source}\n")
    python = [sys.executable, str(script)]
    words = ["quorlock", "run", "migrate:shop", "--fencing", "--", *python]
    assert host.run(words) == (0, "", "")
    rows: list[Any] = database.execute("SELECT total FROM orders").fetchall()
    assert rows == [(0,)]
    status, _, complained = host.run(python, QUORLOCK_FENCE="1")
    assert status != 0
    assert "StaleFence" in complained
    database.close()
