"""The sources of nodes, settings and passwords, and the messages for mistakes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from quorlock._cli import config
from quorlock._cli.config import FileSettings, settings
from quorlock._cli.exit_status import EX_CONFIG, EX_USAGE, Failed
from quorlock._cli.nodes import Source
from tests.servers.cli import schema
from tests.servers.cli.command import Shell

NOTHING = Source(None, None, None)
SECRET = "canary-s3cret"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, from which nothing is named; the working directory is beside it."""
    for name in ("NODES", "CONFIG", "PASSWORD", "MAX_TTL", "OWNER", "WAITING"):
        monkeypatch.delenv(f"QUORLOCK_{name}", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "home"
    here = tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(here)
    return folder


def write(path: Path, *lines: str, nodes: str | None = "a") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    named = [f'nodes = ["redis://{nodes}"]'] if nodes else []
    path.write_text("\n".join([*named, *lines]) + "\n")
    return path


def hosts(found: FileSettings) -> list[str]:
    return [node.host for node in found.nodes]


def refusal(source: Source = NOTHING) -> str:
    with pytest.raises(Failed) as raised:
        settings(source).redlock().close()
    assert raised.value.status == EX_CONFIG
    assert SECRET not in str(raised.value)
    assert SECRET not in repr(raised.value.__context__)
    return str(raised.value)


# --- the order -------------------------------------------------------------------------------


def test_each_place_goes_before_those_after_it(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Option, environment, named file, file here, XDG folder: from the last to the first."""
    write(home / ".config/quorlock/quorlock.toml", nodes="at-home")
    assert hosts(settings(NOTHING)) == ["at-home"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    write(tmp_path / "xdg/quorlock/quorlock.toml", nodes="by-xdg")
    assert hosts(settings(NOTHING)) == ["by-xdg"]
    write(Path("quorlock.toml"), nodes="here")
    assert hosts(settings(NOTHING)) == ["here"]
    monkeypatch.setenv("QUORLOCK_CONFIG", str(write(tmp_path / "named.toml", nodes="named")))
    assert hosts(settings(NOTHING)) == ["named"]
    option = str(write(tmp_path / "option.toml", nodes="by-option"))
    assert hosts(settings(Source(None, option, None))) == ["by-option"]
    monkeypatch.setenv("QUORLOCK_NODES", "redis://e,redis://f")
    assert hosts(settings(Source(None, option, None))) == ["e", "f"]
    assert hosts(settings(Source("redis://g", option, None))) == ["g"]


def test_no_node_is_made_up() -> None:
    """A lock that only seems shared is worse than none: the sentence shows every way."""
    said = refusal()
    for way in ("--nodes", "QUORLOCK_NODES", "--config", "QUORLOCK_CONFIG", "quorlock.toml"):
        assert way in said


def test_a_home_that_cannot_be_looked_into_has_no_file(
    monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """`sudo -u` keeps the HOME of another user. A name too long does as much to root."""
    assert shell.answer("status", "x", given={"XDG_CONFIG_HOME": "x" * 300, "QUORLOCK_CONFIG": ""})
    monkeypatch.setenv("XDG_CONFIG_HOME", "x" * 300)
    assert "no nodes are named" in refusal()


def test_what_is_given_and_empty_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--nodes "$UNSET"` must not lock on other nodes; an empty variable is as none."""
    write(Path("quorlock.toml"), nodes="here")
    monkeypatch.setenv("QUORLOCK_NODES", "")
    assert hosts(settings(NOTHING)) == ["here"]
    assert "give at least one node" in refusal(Source("", None, None))
    assert "directory" in refusal(Source(None, "", None))
    assert hosts(settings(Source(" redis://a,\nredis://b, ", None, None))) == ["a", "b"]


def test_the_other_settings_come_from_a_file_that_is_named_alone(tmp_path: Path) -> None:
    """One that only lies about may be there for others."""
    named = str(write(tmp_path / "named.toml", "ttl = 20", nodes=None))
    write(Path("quorlock.toml"), "ttl = 15")
    assert settings(Source("redis://g", named, None)).seconds("ttl") == 20
    assert settings(Source("redis://g", None, None)).default_ttl() == 10
    assert settings(NOTHING).seconds("ttl") == 15


@pytest.mark.parametrize(
    ("lines", "ttl"), [(["max_ttl = 5"], 5), (["max_ttl = 60"], 10), (["ttl = 3"], 3)]
)
def test_the_default_ttl_of_a_file(lines: list[str], ttl: float) -> None:
    """A shorter max_ttl alone is enough."""
    write(Path("quorlock.toml"), *lines)
    assert settings(NOTHING).default_ttl() == ttl


def test_the_keys_are_the_arguments_of_a_redlock() -> None:
    """All of them, each of which it takes; "none" is TOML's None."""
    write(
        Path("quorlock.toml"),
        *("ttl = 8", "max_ttl = 20.5", "node_timeout = 0.1", "connect_timeout = 2"),
        *("drift_factor = 0.02", "retry_delay = [0.1, 0.3]", "outage_timeout = 0"),
        *(
            'restart_guard = "none"',
            'waiting = "poll"',
            'prefix = "app:"',
            'owner = "ci"',
            'username = "u"',
            'password = "p"',
        ),
    )
    found = settings(NOTHING)
    assert set(found.arguments) == set(config.DEFAULTS)
    with found.redlock() as redlock:
        policy = redlock._session.policy
    assert (policy.ttl_ms, policy.max_ttl_ms, policy.restart_guard) == (8000, 20_500, None)
    assert (policy.prefix, policy.waiting) == (b"app:", "poll")
    assert redlock._session.entropy.token().endswith(b"@ci")


# --- slips -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tttl = 3", "'tttl' is unknown; did you mean 'ttl'?"),
        ("node-timeout = 3", "did you mean 'node_timeout'?"),
        ("Password = 'x'", "did you mean 'password'?"),
        ("colour = 3", "'colour' is unknown; known are nodes, ttl, "),
        ("[redlock]", "'redlock' is unknown"),
        ("ttl = 'long'", "ttl = 'long': this is no duration\nhint: give a duration"),
        ("ttl = 300", "ttl 5m: longer than max_ttl (30s)\nhint: give at most 30s"),
        ("restart_guard = 'yes'", "restart_guard='yes': give 'uptime'"),
        ("restart_guard = ['uptime']", "restart_guard=['uptime']: give 'uptime'"),
        (f"password = {SECRET}", "line 2"),
        (f"password = ['{SECRET}']", "nodes[0] password: "),
        ("password = 12345", "nodes[0] password: "),
        ("password = 0", "nodes[0] password: "),
        ("username = []", "nodes[0] username: "),
        ("username = 3", "nodes[0] username: "),
    ],
)
def test_an_error_in_the_file_is_reported_with_its_place(line: str, words: str) -> None:
    write(Path("quorlock.toml"), line)
    said = refusal()
    assert said.startswith("quorlock.toml: ")
    assert words in said
    assert "12345" not in said


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ("nodes = 'redis://a'", "nodes: give a list"),
        ("nodes = []", "quorlock.toml: give at least one node"),
        ("nodes = ['redis://a', 3]", "nodes[1] "),
        ("nodes = ['redis://a', 'memory://b']", "nodes[1] memory://b: a node in memory"),
        ("nodes = ['redis://a', 'redis://a/1']", "this is the same server as nodes[0]"),
        (f"nodes = ['redis://:{SECRET}@a b']", "nodes[0] redis://"),
        ("", "it names no nodes"),
    ],
)
def test_an_error_in_the_nodes_is_reported_with_its_place(nodes: str, words: str) -> None:
    write(Path("quorlock.toml"), nodes, nodes=None)
    assert words in refusal()


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named file that is missing, a folder or not text is never ignored."""
    write(Path("quorlock.toml"))
    assert "No such file" in refusal(Source(None, "nowhere.toml", None))
    assert "directory" in refusal(Source(None, str(tmp_path), None))
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"password = '\xff\xfe" + SECRET.encode() + b"'")
    assert "utf-8" in refusal(Source(None, str(binary), None))
    deep = tmp_path / "deep.toml"
    deep.write_text(f"nodes = {'[' * 9999}")
    assert "nested too deeply" in refusal(Source(None, str(deep), None))
    monkeypatch.setenv("QUORLOCK_CONFIG", "elsewhere.toml")
    assert refusal().startswith("elsewhere.toml: No such file")


# --- passwords -------------------------------------------------------------------------------


def descriptor(text: bytes) -> int:
    ours, theirs = os.pipe()
    os.write(theirs, text)
    os.close(theirs)
    return ours


def test_passwords_come_from_the_descriptor_the_environment_or_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sources have this order; a user comes from the file. The descriptor is closed, nothing is
    shown.
    """
    write(Path("quorlock.toml"), "username = 'u'", f"password = '{SECRET}-file'")
    assert login(NOTHING) == ("u", f"{SECRET}-file")
    monkeypatch.setenv("QUORLOCK_PASSWORD", f"{SECRET}-environment")
    assert login(NOTHING) == ("u", f"{SECRET}-environment")
    number = descriptor(f"{SECRET}-descriptor\nmore".encode())
    assert login(Source(None, None, number)) == ("u", f"{SECRET}-descriptor")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def login(source: Source) -> tuple[str | None, str | None]:
    found = settings(source)
    assert SECRET not in repr(found)
    assert SECRET not in repr(found.redlock())
    return found.nodes[0].username, found.nodes[0].password


def test_a_login_in_a_url_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only nodes whose URL has none get the common one; TLS and the rest of the URL stay."""
    monkeypatch.setenv("QUORLOCK_PASSWORD", SECRET)
    monkeypatch.setenv("QUORLOCK_NODES", "redis://:own@a:1/2,rediss://b:7,redis://u:@c")
    first, second, third = settings(NOTHING).nodes
    assert (first.password, first.port, first.db) == ("own", 1, 2)
    assert (second.password, second.port, second.username) == (SECRET, 7, None)
    assert second.tls is not None
    assert (third.username, third.password) == ("u", None)


@pytest.mark.parametrize("text", [b"\xff\xfe" + SECRET.encode(), None])
def test_a_descriptor_that_gives_no_password(text: bytes | None) -> None:
    """The descriptor is not open or has no text."""
    number = descriptor(text) if text else 987
    write(Path("quorlock.toml"))
    assert refusal(Source(None, None, number)).startswith(f"--password-fd {number}: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ttl = inf", "ttl inf: give a finite number of seconds, 0 or more"),
        ("ttl = nan", "ttl nan: give a finite number of seconds, 0 or more"),
        ("retry_delay = [inf, 1]", "retry_delay[0] inf: give a finite number of seconds"),
        ("drift_factor = 5", "drift_factor 5: give a share of the ttl"),
        ("prefix = 5", "prefix 5: give a string"),
        ("owner = 5", "owner 5: give text"),
        ("waiting = 5", "waiting 5: give 'auto'"),
    ],
)
def test_a_number_in_the_file_is_shown_as_it_is(line: str, said: str) -> None:
    """TOML knows infinity; only durations are shown as durations."""
    Path("quorlock.toml").write_text(f'nodes = ["redis://a"]\n{line}\n')
    assert refusal().startswith(f"quorlock.toml: {said}")


def test_a_number_that_no_descriptor_has(shell: Shell) -> None:
    """The system takes no number from 2**31 on."""
    for number in (-1, 2**31, 10**30):
        said = shell.complaint(EX_USAGE, "status", "a", "--password-fd", str(number))
        assert f"--password-fd: {number} is not in the range" in said


# --- the words of the command line, and what is in force --------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "run a --ttl 1h -- true",
            (
                "quorlock run: --ttl 1h: longer than max_ttl (30s)\n"
                "hint: give at most 30s, or raise max_ttl for all clients: --max-ttl 1h,"
                " QUORLOCK_MAX_TTL=1h, or max_ttl in the TOML file\n"
            ),
        ),
        (
            "run a --max-hold 2s -- true",
            "quorlock run: --max-hold 2s: shorter than the ttl (10s)\nhint: give --ttl 2s as",
        ),
        (
            "extend a --token x --ttl 10ms",
            "quorlock extend: --ttl 10ms: shorter",
        ),
        ("acquire quorlock:x", "quorlock acquire: RESOURCE quorlock:x: keys that begin"),
        ("acquire a --wait 99999d", "quorlock acquire: --wait 99999d: "),
        ("acquire a --timeout 99999d", "quorlock acquire: --wait 99999d: "),
        (
            "release a --token é",
            "quorlock release: --token: this is no token\n",
        ),
    ],
)
def test_errors_are_in_the_words_of_the_command_line(words: str, said: str, shell: Shell) -> None:
    """Never in those of the Python API."""
    found = shell.complaint(EX_USAGE, *words.split())
    assert found.startswith(said)
    assert not re.search(r"ttl=|max_hold|renew=|timedelta|True|False", found)


def test_json_of_run_has_the_same_words(shell: Shell) -> None:
    said = json.loads(
        shell.complaint(EX_USAGE, *["run", "a", "--json", "--ttl", "1h", "--", "true"])
    )
    assert said["message"].startswith("--ttl 1h: longer than max_ttl (30s)\nhint: ")


def test_a_token_of_the_environment_is_named_by_its_variable(shell: Shell) -> None:
    said = shell.complaint(EX_USAGE, "release", "a", given={"QUORLOCK_TOKEN": "é"})
    assert said.startswith("quorlock release: QUORLOCK_TOKEN: this is no token\n")


def test_an_address_without_a_scheme_is_answered_with_the_url() -> None:
    source = Source(f"redis://a,user:{SECRET}@b:7", None, None)
    assert refusal(source) == "--nodes: b:7 is no URL\nhint: did you mean redis://b:7?"


def test_max_ttl_comes_from_the_option_the_environment_or_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A shorter one than the default ttl also shortens the ttl."""
    write(Path("quorlock.toml"), 'max_ttl = "2m"', "retry_delay = ['50ms', 0.3]")
    assert settings(NOTHING).seconds("max_ttl") == 120
    assert settings(NOTHING).argument("retry_delay") == [0.05, 0.3]
    monkeypatch.setenv("QUORLOCK_MAX_TTL", "5m")
    found = settings(NOTHING)
    assert (found.seconds("max_ttl"), found.default_ttl()) == (300, 10)
    found = settings(Source(None, None, None, 5.0))
    assert (found.seconds("max_ttl"), found.default_ttl()) == (5, 5)
    assert found.origins["max_ttl"] == "--max-ttl"
    assert refusal(Source(None, None, None, 0.01)).startswith("--max-ttl 10ms: shorter than ")
    monkeypatch.setenv("QUORLOCK_MAX_TTL", "10ms")
    assert refusal().startswith("QUORLOCK_MAX_TTL 10ms: shorter than ")
    monkeypatch.setenv("QUORLOCK_MAX_TTL", "long")
    assert refusal().startswith("QUORLOCK_MAX_TTL long: this is no duration\nhint: ")
    monkeypatch.delenv("QUORLOCK_MAX_TTL")
    monkeypatch.setenv("QUORLOCK_WAITING", "never")
    assert refusal().startswith("QUORLOCK_WAITING never: give 'auto' ")


def test_a_longer_lease_needs_only_the_option(shell: Shell) -> None:
    words = ["--ttl", "5m", "--max-ttl", "5m"]
    facts = json.loads(shell.answer("acquire", "a", "--json", *words))
    assert facts["ttl"] == 300


def test_a_file_that_is_not_read_is_named_where_it_matters(shell: Shell) -> None:
    del shell.variables["QUORLOCK_CONFIG"]
    (shell.home / "quorlock.toml").write_text('max_ttl = "1h"\n')
    note = "quorlock.toml is not read, because QUORLOCK_NODES names the nodes"
    assert note in shell.complaint(EX_USAGE, "acquire", "a", "--ttl", "1h")
    done = shell.run("config")
    assert (done.returncode, done.stderr.startswith(f"quorlock config: {note}")) == (0, True)
    assert shell.answer("acquire", "a", "--ttl", "1h", "--config", "quorlock.toml")


def test_config_shows_what_is_in_force_and_from_where(shell: Shell) -> None:
    """Show the settings as text and as JSON, and never a password."""
    (shell.home / "q.toml").write_text(f'ttl = "15s"\nprefix = "app:"\npassword = "{SECRET}"\n')
    given = {
        "QUORLOCK_NODES": f"redis://:{SECRET}@a/3,rediss://b:7",
        "QUORLOCK_CONFIG": "q.toml",
        "QUORLOCK_PASSWORD": SECRET,
        "QUORLOCK_MAX_TTL": "1h",
        "QUORLOCK_WAITING": "poll",
    }
    text = shell.answer("config", given=given)
    assert SECRET not in text
    rows = [tuple(line.split(maxsplit=1)) for line in text.splitlines()]
    found = [(name, " ".join(rest.split())) for name, rest in rows]
    for row in (
        ("node", "redis://a:6379/3 QUORLOCK_NODES"),
        ("node", "rediss://b:7 QUORLOCK_NODES"),
        ("ttl", "15s q.toml"),
        ("max_ttl", "1h QUORLOCK_MAX_TTL"),
        ("node_timeout", "50ms default"),
        ("retry_delay", "50ms to 200ms default"),
        ("waiting", "poll QUORLOCK_WAITING"),
        ("prefix", "app: q.toml"),
        ("password", "*** QUORLOCK_PASSWORD"),
    ):
        assert row in found
    facts = json.loads(shell.answer("config", "--json", given=given))
    assert SECRET not in str(facts)
    schema_text = Path(__file__).parents[3] / "docs/reference/cli.schema.json"
    root = json.loads(schema_text.read_text())
    assert schema.problems(facts, root["$defs"]["config"], root) == []
    assert {"name": "ttl", "value": 15.0, "origin": "q.toml"} in facts["settings"]
    shell.complaint(EX_CONFIG, "config", given={"QUORLOCK_NODES": "a"})
