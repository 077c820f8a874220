"""docs/reference/settings.md is true: it is compared with signatures, options and variables."""

from __future__ import annotations

import inspect
import re
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pytest

import quorlock.asyncio
from quorlock import Redlock
from quorlock._cli.config import DEFAULTS, settings
from quorlock._cli.help import TOPICS
from quorlock._cli.main import commands
from quorlock._cli.nodes import Source
from tests.harness.support.pages import DOCS, titled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = "reference/settings.md"
TEXT = (DOCS / PAGE).read_text(encoding="utf-8")
# The nodes' login is part of a URL in Python. `resource` is not a setting.
ONLY_IN_FILES = {"username", "password"}
KEYS = {"nodes", *DEFAULTS} | ONLY_IN_FILES


class Setting(NamedTuple):
    """The facts in the line below a heading."""

    default: str
    calls: set[tuple[str, str]]
    options: set[str]
    variables: set[str]
    keys: set[str]


def parsed() -> dict[str, Setting]:
    """Return the settings of the page by their names; a heading may have two."""
    found: dict[str, Setting] = {}
    for heading, line in re.findall(
        r"^### (.+)\n\n((?:Default|No default).+)$", TEXT, re.MULTILINE
    ):
        default = re.match(r"Default `([^`]*)`", line)
        setting = Setting(
            default[1] if default else "",
            set(re.findall(r"`(\w+)\((\w+)=", line)),
            set(re.findall(r"`(--[a-z-]+)`", line)),
            set(re.findall(r"`(QUORLOCK_\w+)`", line)),
            set(re.findall(r"TOML `(\w+)`", line)),
        )
        for name in re.findall(r"`(\w+)`", heading):
            found[name] = setting
    return found


PARSED = parsed()


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments with defaults that may be given by name only."""
    parameters = inspect.signature(function).parameters.values()
    return {it.name: it.default for it in parameters if it.kind is it.KEYWORD_ONLY}


OF_REDLOCK = arguments(Redlock.__init__)
OF_LOCK = arguments(Redlock.lock) | arguments(quorlock.asyncio.Redlock.lock)


def test_it_has_each_setting_and_no_other() -> None:
    headings = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^### (.+)$", TEXT, re.MULTILINE))))
    assert headings == PARSED.keys(), "each heading has its line"
    assert PARSED.keys() == OF_REDLOCK.keys() | OF_LOCK.keys() | {"nodes"} | ONLY_IN_FILES


@pytest.mark.parametrize(("call", "given"), [("Redlock", OF_REDLOCK), ("lock", OF_LOCK)])
def test_the_arguments_and_defaults_are_those_of_the_code(call: str, given: dict[str, Any]) -> None:
    assert {name for name, it in PARSED.items() if (call, name) in it.calls} == set(given)
    for name, value in given.items():
        if name != "ttl":  # None: as the line says, and as the next test shows
            assert PARSED[name].default == repr(value).replace("'", '"'), name


def test_the_default_ttl() -> None:
    assert Redlock(["memory://a"]).lock("x").ttl == float(PARSED["ttl"].default)
    assert Redlock(["memory://a"], max_ttl=5.0).lock("x").ttl == 5.0
    assert "or `max_ttl` if that is shorter" in TEXT


def test_the_keys_of_the_file_are_those_of_the_code() -> None:
    assert {key for it in PARSED.values() for key in it.keys} == KEYS
    assert all(it.keys <= {name} | ONLY_IN_FILES for name, it in PARSED.items())
    assert tomllib.loads(titled(PAGE)["quorlock.toml"]).keys() <= KEYS


def test_the_file_of_the_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NODES", "CONFIG", "PASSWORD", "MAX_TTL", "OWNER"):
        monkeypatch.delenv(f"QUORLOCK_{name}", raising=False)
    file = tmp_path / "quorlock.toml"
    file.write_text(titled(PAGE)["quorlock.toml"])
    found = settings(Source(None, str(file), None))
    assert [node.username for node in found.nodes] == ["quorlock"] * 3
    with found.redlock() as redlock:
        assert redlock.lock("x").ttl == 10.0


def options(command: click.Command) -> dict[str, str]:
    """Return all options of a command and its subcommands, and the help of each."""
    found = {
        name: option.help or ""
        for option in command.params
        if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            found |= options(child)
    return found


def test_the_options_and_variables_are_those_of_the_commands() -> None:
    known = options(commands)
    named = {option for it in PARSED.values() for option in it.options}
    assert named <= known.keys()
    # A variable stands beside its option in the help, and in one line of the page.
    for option, text in known.items():
        for variable in re.findall(r"\[env: (QUORLOCK_\w+)", text):
            places = [it for it in PARSED.values() if option in it.options]
            if option not in ("--config", "--token"):  # these are no settings of a Redlock
                assert [it for it in places if variable in it.variables], option
            assert f"`{variable}`" in TEXT


def test_all_variables_of_the_code_are_on_the_page() -> None:
    source = DOCS.parent / "src" / "quorlock"
    code = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert set(re.findall(r"(?<!_)QUORLOCK_[A-Z_]*[A-Z]\b", code)) == set(
        re.findall(r"QUORLOCK_[A-Z_]*[A-Z]\b", TEXT)
    )


def test_the_help_topic_has_the_variables_of_the_page() -> None:
    shown = set(re.findall(r"\b[A-Z]+_[A-Z_]*[A-Z]\b", TOPICS["environment"]))
    assert shown == set(re.findall(r"\b[A-Z]+_[A-Z_]*[A-Z]\b", TEXT))
