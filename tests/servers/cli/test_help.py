"""The help of every command: its examples, its defaults, and the names that a stranger tries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from quorlock._cli.examples import EXAMPLES
from quorlock._cli.exit_status import EX_USAGE
from quorlock._cli.help import TOPICS
from quorlock._cli.main import NAME, commands
from tests.servers.cli.command import Shell


def leaves(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Return all commands that are no groups, by the words that call them."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            yield from ((f"{name} {rest}", leaf) for rest, leaf in leaves(command, inner))
        else:
            yield name, command


LEAVES = dict(leaves(commands, click.Context(commands, info_name=NAME)))


def words_of(example: str) -> list[str]:
    """Return the words after `quorlock`, also where it stands within `$(...)`."""
    inner = re.search(r"\$\((quorlock .*?)\)", example)
    return shlex.split(inner.group(1) if inner else example)[1:]


def test_each_command_has_examples() -> None:
    assert set(EXAMPLES) == set(LEAVES)


@pytest.mark.parametrize(
    ("path", "example"), [(path, example) for path in EXAMPLES for example in EXAMPLES[path]]
)
def test_each_example_is_parsed_as_it_stands(path: str, example: str) -> None:
    """Parse each example with its command, whose help shows it."""
    command: click.Group = commands
    context = commands.make_context(NAME, words_of(example))
    words = [*context._protected_args, *context.args]
    for name in path.split():
        assert words[0] == name
        found = command.get_command(context, name)
        assert found is not None
        context = found.make_context(name, words[1:], parent=context)
        words = [*context._protected_args, *context.args]
        assert f"  {example}\n" in f"{context.get_help()}\n"
        if isinstance(found, click.Group):
            command = found
    assert words == []


@pytest.mark.parametrize("path", LEAVES)
def test_options_name_their_defaults_and_variables(path: str) -> None:
    for option in LEAVES[path].params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        help_text = option.help or ""
        assert help_text.endswith((".", "]")), (option.name, help_text)
        if option.default not in (None, False) and "UNSET" not in repr(option.default):
            assert "[default: " in help_text, option.name
        if option.envvar:
            assert f"[env: {option.envvar}]" in help_text


def test_help_has_all_its_names(bare_shell: Shell) -> None:
    """`-h`, `help`, and `help COMMAND` are the same as `--help`."""
    text = bare_shell.answer("--help")
    assert bare_shell.answer("-h") == bare_shell.answer("help") == text
    for title in ("Locks:", "Nodes:", "Try it:", "More:"):
        assert f"\n{title}\n" in text
    nested = bare_shell.answer("nodes", "add", "--help")
    assert bare_shell.answer("help", "nodes", "add") == nested
    assert bare_shell.answer("nodes", "add", "-h") == nested
    assert bare_shell.answer("version") == bare_shell.answer("--version")


@pytest.mark.parametrize("topic", TOPICS)
def test_topics_fit_a_screen(topic: str, bare_shell: Shell) -> None:
    lines = bare_shell.answer("help", topic).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 95


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("lock a", "quorlock: no such command 'lock'\nhint: did you mean 'run' or 'acquire'?\n"),
        ("unlock a", "quorlock: no such command 'unlock'\nhint: did you mean 'release'?\n"),
        ("ls", "quorlock: no such command 'ls'\nhint: did you mean 'status'?\n"),
        ("list", "quorlock: no such command 'list'\nhint: did you mean 'status'?\n"),
        ("help statsu", "quorlock help: no such command 'statsu'\nhint: did you mean 'status'?\n"),
        ("help run x", "quorlock help: 'quorlock run' has no command 'x'\n"),
        (
            "release a",
            "quorlock release: --token is missing\nhint: give --token, or set QUORLOCK_TOKEN\n",
        ),
        (
            "completion tcsh",
            "quorlock completion: SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish'\n",
        ),
        ("--tea", "quorlock: no such option --tea\nhint: see 'quorlock --help'\n"),
        (
            "acquire a --formt json",
            "quorlock acquire: no such option --formt\nhint: did you mean --format?\n",
        ),
        ("acquire a --ttl", "quorlock acquire: option '--ttl' requires an argument\n"),
    ],
)
def test_what_a_stranger_types_is_answered_with_a_hint(
    words: str, said: str, bare_shell: Shell
) -> None:
    found = bare_shell.complaint(EX_USAGE, *words.split())
    assert found.startswith(said)


def test_timeout_is_another_name_of_wait(shell: Shell) -> None:
    token = shell.answer("acquire", "a", "--timeout", "5s")
    for words in (["acquire", "a"], ["run", "a", "--", "true"]):
        words[2:2] = ["--timeout", "0"]
        assert "'a' is held by " in shell.complaint(75, *words)
    assert shell.answer("release", "a", "--token", token) == ""


def test_json_is_another_name_of_a_format(shell: Shell) -> None:
    """The later one is obeyed if both are given."""
    assert '"resource": "a"' in shell.answer("acquire", "a", "--json", "--ttl", "1s")
    assert "export QUORLOCK_TOKEN=" in shell.answer("acquire", "b", "--format", "shell")
    assert re.match("[0-9a-f]{32}", shell.answer("acquire", "c"))
