"""`Redlock.from_env` takes nodes and settings from the environment and a file, in both APIs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import quorlock
import quorlock.asyncio as aio
from quorlock import ConfigError
from quorlock._api.redlock import RedlockSettings
from quorlock.testing.memory import MemoryNodes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECRET = "canary-s3cret"
REDLOCKS: dict[str, Any] = {"blocking": quorlock.Redlock, "asyncio": aio.Redlock}


@pytest.fixture(autouse=True)
def patient_default() -> None:
    """Leave the library's default of `node_timeout`, which is seen here."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home and working directory, without variables."""
    for name in ("NODES", "CONFIG", "PASSWORD", "MAX_TTL", "OWNER"):
        monkeypatch.delenv(f"QUORLOCK_{name}", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=REDLOCKS)
def from_env(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return the class method, blocking and asyncio."""
    made: Callable[..., Any] = REDLOCKS[request.param].from_env
    return made


def settings(redlock: Any) -> Any:
    return redlock._session.policy


def refusal(from_env: Callable[..., Any], **given: Any) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        from_env(**given)
    error = raised.value
    assert SECRET not in str(error) + repr(error) + repr(error.args) + repr(error.__context__)
    assert str(type(error)(*error.args)) == str(error), "it can cross to another process"
    return error


def test_a_lock_with_the_nodes_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes, settings and owner are used; a keyword argument replaces a setting."""
    monkeypatch.setenv("QUORLOCK_MAX_TTL", "1m")
    monkeypatch.setenv("QUORLOCK_OWNER", "ci")
    with MemoryNodes(3) as nodes:
        monkeypatch.setenv("QUORLOCK_NODES", ",".join(nodes.urls))
        with quorlock.Redlock.from_env(ttl=50.0) as redlock, redlock.lock("a") as lease:
            assert (lease.ttl, lease.token.endswith("@ci")) == (50.0, True)
            assert len(redlock.nodes) == 3


def test_the_file_and_what_replaces_it(
    from_env: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is found, then a variable, then an argument."""
    lines = ['nodes = ["redis://a", "redis://b:7"]', "max_ttl = 20", 'ttl = "8s"', "prefix = 'p:'"]
    (here / "quorlock.toml").write_text("\n".join(lines))
    policy = settings(from_env())
    assert (policy.addresses, policy.max_ttl_ms, policy.ttl_ms) == (("a:6379", "b:7"), 20_000, 8000)
    monkeypatch.setenv("QUORLOCK_MAX_TTL", "40s")
    assert settings(from_env()).max_ttl_ms == 40_000
    policy = settings(from_env(max_ttl=60, prefix="q:"))
    assert (policy.max_ttl_ms, policy.prefix) == (60_000, b"q:")


def test_the_password_is_that_of_the_environment(
    from_env: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes get it, and nothing shows it."""
    monkeypatch.setenv("QUORLOCK_NODES", "redis://a")
    monkeypatch.setenv("QUORLOCK_PASSWORD", SECRET)
    redlock = from_env()
    assert redlock._session.driver.node_states.all[0].node.password == SECRET
    assert SECRET not in repr(redlock)


@pytest.mark.parametrize(
    ("variables", "file", "said"),
    [
        ({}, "", "QUORLOCK_NODES=None: no nodes are named. Say which"),
        (
            {"NODES": f"redis://a,user:{SECRET}@b:7"},
            "",
            "QUORLOCK_NODES=(not shown): b:7 is no URL; did you mean redis://b:7?",
        ),
        (
            {"NODES": f"redis://user:12,{SECRET},3@b:7"},
            "",
            "QUORLOCK_NODES=(not shown): what follows a comma has no scheme; begin each URL",
        ),
        (
            {"NODES": "redis://a", "MAX_TTL": "long"},
            "",
            "QUORLOCK_MAX_TTL=long: this is no duration; give a duration, such as 30s,",
        ),
        (
            {"NODES": "redis://a", "MAX_TTL": "10ms"},
            "",
            (
                "max_ttl=0.01: give at least 0.15 s: a lease must outlive several answers of"
                " node_timeout=0.05 s, and the drift (from QUORLOCK_MAX_TTL)"
            ),
        ),
        (
            {"NODES": "redis://a", "WAITING": "never"},
            "",
            (
                "waiting='never': give 'auto' (in order, called by the nodes) or 'poll'"
                " (at random times) (from QUORLOCK_WAITING)"
            ),
        ),
        (
            {"NODES": "redis://a", "PASSWORD": f"{SECRET}\udce9"},
            "",
            "QUORLOCK_PASSWORD=(not shown): it is not UTF-8",
        ),
        ({"NODES": ","}, "", "nodes=(): give at least one node"),
        ({"CONFIG": "missing.toml"}, "", "file='missing.toml': No such file or directory"),
        ({}, "tttl = 3", "file='quorlock.toml': the key 'tttl' is unknown; did you mean 'ttl'?"),
        ({}, f"password = '{SECRET}'", "file='quorlock.toml': it names no nodes"),
        ({}, f"password = '{SECRET}", "file='quorlock.toml': "),
    ],
)
def test_a_mistake_is_named_with_its_place(
    from_env: Callable[..., Any],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    file: str,
    said: str,
) -> None:
    """The error names the variable or the file, and what to do; nothing secret."""
    for name, value in variables.items():
        monkeypatch.setenv(f"QUORLOCK_{name}", value)
    if file:
        (here / "quorlock.toml").write_text(file)
    assert str(refusal(from_env)).startswith(said)


def test_a_mistake_in_an_argument_is_no_mistake_of_the_environment(
    from_env: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error does not name a variable that the argument replaces."""
    monkeypatch.setenv("QUORLOCK_NODES", "redis://a")
    monkeypatch.setenv("QUORLOCK_MAX_TTL", "40s")
    assert "from " not in str(refusal(from_env, max_ttl=0.01))
    with pytest.raises(TypeError, match="colour"):
        from_env(colour="red")


def test_local_nodes_that_cannot_be_started(
    from_env: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word "local" stands for the nodes of `quorlock local`; its errors are ConfigErrors."""
    monkeypatch.setenv("QUORLOCK_NODES", "local")
    monkeypatch.setenv("XDG_STATE_HOME", str(here / ("long" * 30)))
    said = str(refusal(from_env))
    assert said.startswith("QUORLOCK_NODES=local: ")
    assert "too long for a unix socket" in said


def test_the_reader_is_loaded_when_it_is_used() -> None:
    """`import quorlock` stays fast, and TOML is loaded only where there is a file."""
    code = (
        "import sys, quorlock\n"
        "assert 'quorlock._settings.reader' not in sys.modules\n"
        "quorlock.Redlock.from_env()\n"
        "assert 'quorlock._settings.reader' in sys.modules\n"
        "assert not {'tomllib', 'click', 'quorlock._cli'} & set(sys.modules)"
    )
    environment = {"QUORLOCK_NODES": "redis://127.0.0.1:1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize("face", REDLOCKS.values(), ids=REDLOCKS)
def test_the_keyword_arguments_are_those_of_the_class(face: Any) -> None:
    """The environment and `from_env` know the arguments of `Redlock`, in this order."""
    assert list(RedlockSettings.__annotations__) == list(face.__init__.__kwdefaults__)


@pytest.mark.parametrize("face", REDLOCKS.values(), ids=REDLOCKS)
def test_a_class_with_its_own_arguments(face: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass whose `__init__` has no keyword arguments is made from the nodes."""

    class Fixed(face):  # type: ignore[misc]
        def __init__(self, nodes: Any) -> None:
            super().__init__(nodes, ttl=3.0)

    monkeypatch.setenv("QUORLOCK_NODES", "memory://fixed")
    redlock = Fixed.from_env()
    assert isinstance(redlock, Fixed)
    assert redlock.lock("x").ttl == 3.0
