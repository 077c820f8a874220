"""Completion in a real bash, the scripts for the others, and what `--help` may load."""

from __future__ import annotations

import shutil
import subprocess
import sys

import click
import pytest

from quorlock.cli.main import COMMANDS, commands
from tests.cli.command import Shell

bash = shutil.which("bash")


def completed(shell: Shell, *words: str) -> list[str]:
    """What bash offers for the last of these words, by what the completion has registered."""
    script = """
        eval "$(quorlock completion bash)" || exit
        registered=$(complete -p quorlock) && [[ $registered =~ -F\\ ([^ ]+) ]] || exit
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        "${BASH_REMATCH[1]}" quorlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "-c", script, "bash", "quorlock", *words],
        env=shell.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.skipif(bash is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], list(COMMANDS)),
        (["st"], ["status"]),
        (["status", "--js"], ["--json"]),
        (["acquire", "x", "--format", ""], ["token", "shell", "json"]),
        (["completion", "b"], ["bash"]),
        (["demo", "--no-l"], ["--no-lock"]),
    ],
    ids=" ".join,
)
def test_bash_completes(words: list[str], offered: list[str], installed: Shell) -> None:
    assert completed(installed, *words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_others_are_given_their_script(shell: str, bare_shell: Shell) -> None:
    """It calls back for what it is to offer, and gets it."""
    script = bare_shell.answer("completion", shell)
    assert f"_QUORLOCK_COMPLETE={shell}_complete" in script
    given = {
        "_QUORLOCK_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "quorlock st",
        "COMP_CWORD": "st" if shell == "fish" else "1",
    }
    assert "status" in bare_shell.answer(given=given)


def test_another_shell_is_wrong_usage(bare_shell: Shell) -> None:
    assert "'tcsh' is not one of" in bare_shell.complaint(64, "completion", "tcsh")


# --- what is loaded --------------------------------------------------------------------------

TELLS = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))"


def loaded(shell: Shell, *words: str, **given: str) -> set[str]:
    """The modules that a command loads."""
    code = f"{TELLS}\nsys.argv[1:] = {list(words)!r}\nfrom quorlock.__main__ import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=shell.environment(given),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


def after_click() -> set[str]:
    code = f"{TELLS}\nimport click, signal, quorlock, importlib"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_loads_click_and_little_of_ours(bare_shell: Shell) -> None:
    """No core, no socket, no rich: what it takes longer than `import click` is a few files."""
    brought = loaded(bare_shell, "--help") - after_click()
    ours = {name for name in brought if name.startswith("quorlock")}
    assert ours == {
        "quorlock.__main__",
        *("quorlock.cli", "quorlock.cli.main", "quorlock.cli.exits", "quorlock.errors"),
    }
    assert {"socket", "asyncio", "rich", "hiredis", "tomllib", "json"} & brought == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_loads_no_core(name: str, bare_shell: Shell) -> None:
    """Nor does completion."""
    ways = [loaded(bare_shell, name, "--help")]
    asked = {"COMP_WORDS": f"quorlock {name} --", "COMP_CWORD": "2"}
    ways.append(loaded(bare_shell, _QUORLOCK_COMPLETE="bash_complete", **asked))
    for brought in ways:
        assert f"quorlock.cli.{COMMANDS[name].module}" in brought
        assert {"socket", "rich", "hiredis"} & brought == set()
        unwanted = ("quorlock._core", "quorlock._face", "quorlock._sync", "quorlock.demo")
        assert [found for found in brought if found.startswith(unwanted)] == []


def test_the_list_of_commands_is_theirs() -> None:
    """Each is there under its name, and has a help of its own."""
    context = click.Context(commands)
    for name, entry in COMMANDS.items():
        command = commands.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
        assert entry.help.endswith(".")
