"""The guards catch what they are there for: each leak below fails its test, by name."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[3]

linux = pytest.mark.skipif(not Path("/proc").exists(), reason="the guard reads /proc")


# As `make test` does it, or in one process.
IN_WORKERS = ("-p", "xdist", "-n", "1")
ways = pytest.mark.parametrize("way", [(), IN_WORKERS], ids=["one process", "workers"])


def run_pytest(
    folder: Path, source: str, *way: str, grace: str = "0.5"
) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with only the guards, in a separate process."""
    (folder / "test_it.py").write_text(dedent(source))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.harness.guards",
        "-p",
        "no:cacheprovider",
    ]
    command += [*way, "."]
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "QUORLOCK_TEST_GRACE": grace,
    }
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


# Each leak, and how it is named.
LEAKS = {
    "thread": "thread 'idler'",
    "child": "sleep 60",
    "zombie": "ended, but nobody has waited for it",
    "socket": ": socket:[",
    "pipe": ": pipe:[",
}
LEAKING = """
    import os, socket, subprocess, threading

    kept = {}
    def test_thread():
        threading.Thread(target=threading.Event().wait, name="idler", daemon=True).start()
    def test_child():
        kept["child"] = subprocess.Popen(["sleep", "60"])
    def test_zombie():
        if os.fork() == 0:
            os._exit(0)
    def test_socket():
        kept["socket"] = socket.socket()
    def test_pipe():
        os.pipe()
    def teardown_module():
        kept["child"].kill()
        kept["child"].wait()
"""


@linux
def test_a_leak_fails_its_test(tmp_path: Path) -> None:
    run = run_pytest(tmp_path, LEAKING, grace="0.05")
    assert run.returncode == 1, run.stdout + run.stderr
    errors = run.stdout.split("ERROR at teardown of ")[1:]
    assert len(errors) == len(LEAKS), run.stdout
    for (name, named), error in zip(LEAKS.items(), errors, strict=True):
        assert error.startswith(f"test_{name} "), error
        assert "left behind by this test" in error
        assert named in error


@linux
@ways
def test_a_grandchild_fails_the_session(way: tuple[str, ...], tmp_path: Path) -> None:
    # The parent of the process is gone, so no test can be blamed, but the session knows its mark.
    source = """
        import subprocess
        def test_it():
            subprocess.run(["sh", "-c", "sleep 9 & echo $!"], stdout=open("pid", "w"))
    """
    run = run_pytest(tmp_path, source, *way, grace="0.05")
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "left behind by this session" in run.stderr
    assert "sleep 9" in run.stderr


@ways
def test_a_temporary_file_fails_the_session(way: tuple[str, ...], tmp_path: Path) -> None:
    source = """
        import tempfile
        def test_it(tmp_path):
            tempfile.mkdtemp(prefix="forgotten-")
    """
    run = run_pytest(tmp_path, source, *way, grace="0.05")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "/forgotten-" in run.stderr


def test_what_ends_in_time_and_what_is_shared_is_left_alone(tmp_path: Path) -> None:
    source = """
        import multiprocessing, subprocess, tempfile, threading, time
        import pytest

        class Shared:
            def start(self):
                group = self.child.pid if hasattr(self, "child") else 0
                self.other = subprocess.Popen(["sleep", "60"], process_group=group)
                if not group:
                    self.child = self.other

        @pytest.fixture(scope="session")
        def shared():
            shared = Shared()
            shared.start()
            yield shared
            for child in {shared.child, shared.other}:
                child.kill()
                child.wait()

        def test_a_shared_process_may_be_joined_by_another(shared):
            shared.start()

        def test_a_thread_may_take_a_moment_to_end():
            threading.Thread(target=time.sleep, args=[0.2]).start()

        class Last:
            def __del__(self):
                threading.current_thread()  # as a log record does; it is listed again by that

        def test_a_thread_may_log_as_the_last_that_it_does():
            local = threading.local()
            thread = threading.Thread(target=lambda: setattr(local, "last", Last()))
            thread.start()
            thread.join()
            assert len(threading.enumerate()) == 2

        def test_multiprocessing_may_keep_its_tracker():
            multiprocessing.get_context("spawn").Lock()

        def test_what_is_closed_is_gone():
            with tempfile.TemporaryFile():
                subprocess.run(["true"])
    """
    run = run_pytest(tmp_path, source)
    assert run.returncode == 0, run.stdout + run.stderr


@linux
def test_the_servers_are_well_again_for_every_test(tmp_path: Path) -> None:
    # conftest.py's `nodes`, after tests that kill, stop and fill.
    (tmp_path / "conftest.py").write_text("from tests.conftest import nodes, servers\n")
    source = """
        def test_kill(nodes):
            nodes[0].kill()
            nodes[1].stop()
            nodes[2].execute("SET", "k", "v")
            nodes[3].restart()

        def test_well(nodes):
            assert [server.keys() for server in nodes] == [[]] * 5
    """
    run = run_pytest(tmp_path, source)
    assert run.returncode == 0, run.stdout + run.stderr
