"""Completion in a real bash, zsh and fish, and what it and `--help` may load."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys

import click
import pytest

from quorlock._cli.main import COMMANDS, commands
from tests.servers.cli.command import Shell
from tests.servers.cli.terminal import PROMPT, Terminal

RUNTIME = {"XDG_RUNTIME_DIR": "."}  # else fish leaves a folder in /tmp

OFFERED = {
    "": list(COMMANDS),
    "st": ["status"],
    "status --js": ["--json"],
    "acquire x --format ": ["token", "shell", "json"],
    "acquire deploy:web --format ": ["token", "shell", "json"],
    "acquire x --format=": ["token", "shell", "json"],
    "acquire x --format=j": ["json"],
    "completion b": ["bash"],
    "demo --no-l": ["--no-lock"],
    "run --on-busy=s": ["skip"],
    "run deploy:web --on-b": ["--on-busy"],
    "run x --ttl=5s --on-b": ["--on-busy"],
    "run x -- wc af": ["afile"],
    "run x wc af": ["afile"],
    "run deploy:web --ttl=5s -w 5s wc af": ["afile"],
    "run x wc --on-b": [],
    "run x quorl": ["quorlock"],
    "run x -- env wc af": ["afile"],
    "run x -- quorl": ["quorlock"],
}


BY_US = [line for line, offered in OFFERED.items() if offered not in ([], ["afile"])]


@pytest.mark.parametrize("line", BY_US)
def test_what_bash_offers(line: str, installed: Shell) -> None:
    """The registered function completes options and names; bash itself completes files, see
    below.
    """
    script = (
        f"source {printed('bash', installed)} || exit"
        """
        registered=$(complete -p quorlock) && [[ $registered =~ -F\\ ([^ ]+) ]] || exit
        COMP_LINE=$1 && shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_POINT=${#COMP_LINE}
        "${BASH_REMATCH[1]}" quorlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    )
    # bash breaks words at these too.
    words = re.split(r" |(?<=[=:])|(?=[=:])", f"quorlock {line}")
    if words[-1] == "" and words[-2] == "=":
        words.pop()
    done = has_run("bash", script, f"quorlock {line}", *words, shell=installed)
    # A command that is on the PATH twice is offered once, by readline.
    assert list(dict.fromkeys(done.split())) == OFFERED[line]


@pytest.mark.parametrize("line", OFFERED)
def test_what_fish_offers(line: str, installed: Shell) -> None:
    """fish completes commands, or arguments after `--`."""
    (installed.home / "afile").touch()
    offered = [offer.partition("\t")[0] for offer in by_fish(line, installed)]
    option, equals, _ = line.rpartition(" ")[2].partition("=")
    assert offered == [f"{option}{equals}{it}" if equals else it for it in OFFERED[line]]


def test_fish_says_what_each_command_is_for(installed: Shell) -> None:
    said = [f"{name}\t{entry.help}" for name, entry in COMMANDS.items()]
    assert by_fish("", installed) == said


def test_fish_says_to_its_end_what_an_option_means(installed: Shell) -> None:
    """Commas and all."""
    (said,) = by_fish("run --on-l", installed)
    assert said.startswith("--on-lost\tIf the lease is lost: send TERM")
    assert said.endswith(", KILL at once, or only warn.  [default: term]")


def by_fish(line: str, shell: Shell) -> list[str]:
    """Return its completions with their descriptions."""
    script = f"source {printed('fish', shell)}; complete -C $argv[2..]"
    return has_run("fish", script, f"quorlock {line}", shell=shell).splitlines()


def printed(name: str, shell: Shell) -> str:
    """Return the name of a file with what `quorlock completion` prints for this shell.

    It prints the same each time, and is asked once for all tests. `test_at_a_terminal` has the
    documented setup.
    """
    if name not in _PRINTED:
        _PRINTED[name] = shell.answer("completion", name) + "\n"
    (shell.home / f".{name}-completion").write_text(_PRINTED[name])
    return f".{name}-completion"


_PRINTED: dict[str, str] = {}


def has_run(name: str, script: str, *words: str, shell: Shell) -> str:
    """Return the output of this shell, which reads no configuration and prints no errors."""
    quiet = {"bash": "--norc", "fish": "--no-config"}[name]
    if (path := shutil.which(name)) is None:
        pytest.skip(f"there is no {name}")
    done = subprocess.run(
        [path, quiet, "-c", script, name, *words],
        env=shell.environment(RUNTIME),
        cwd=shell.home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# What is typed, before the tabulator, and what the shell makes of it.
TYPED = {
    "quorlock st": "quorlock status",
    "quorlock run --on-b": "quorlock run --on-busy",
    "quorlock run --on-busy s": "quorlock run --on-busy skip",
    "quorlock run --on-busy=s": "quorlock run --on-busy=skip",
    "quorlock run deploy:web --on-b": "quorlock run deploy:web --on-busy",
    "quorlock run 'a b' --on-b": "quorlock run 'a b' --on-busy",
    "quorlock status --config af": "quorlock status --config afile",
    "quorlock status --config=af": "quorlock status --config=afile",
    "quorlock run x -- quorlo": "quorlock run x -- quorlock",
    "quorlock run x quorlo": "quorlock run x quorlock",
    "quorlock run deploy:web --ttl=5s wc af": "quorlock run deploy:web --ttl=5s wc afile",
    "quorlock run x wc --on-b": "quorlock run x wc --on-b",  # the command's
    "quorlock run x -- wc af": "quorlock run x -- wc afile",
    "quorlock run x -- ./bin/quo": "quorlock run x -- ./bin/quorlock",
    "quorlock status -- x --js": "quorlock status -- x --js",  # an argument
}
# The documented setup. It does not load zsh's completion first.
SETUP = {
    "bash": 'eval "$(quorlock completion bash)"',
    "zsh": 'eval "$(quorlock completion zsh)"',
    "fish": "quorlock completion fish > ~/.config/fish/completions/quorlock.fish",
}


@pytest.mark.parametrize("name", SETUP)
def test_at_a_terminal(name: str, installed: Shell) -> None:
    """Keys are pressed in a real shell: the tabulator, then `show ` at the beginning of the
    line.
    """
    home = installed.home
    (home / "afile").touch()
    (home / ".config/fish/completions").mkdir(parents=True)
    show = home / "bin" / "show"
    show.write_text('#!/bin/sh\nfor word; do printf "<%s>" "$word"; done >> shown; echo >> shown\n')
    show.chmod(0o755)
    shown = home / "shown"
    shown.touch()
    with Terminal(name, home, installed.environment(), setup=SETUP[name]) as terminal:
        for number, typed in enumerate(TYPED, 1):
            terminal.type(f"{typed}\t\x01show \r")
            terminal.await_that(lambda: len(shown.read_text().splitlines()) == number)  # noqa: B023
            terminal.await_text(PROMPT, times=number + 1)  # what is typed before it may be lost
    wanted = ["".join(f"<{word}>" for word in shlex.split(line)) for line in TYPED.values()]
    assert shown.read_text().splitlines() == wanted


def test_zsh_loads_it_from_a_folder_of_functions(installed: Shell) -> None:
    """Packages install it like this: a file `_quorlock` in the fpath."""
    functions = installed.home / "functions"
    functions.mkdir()
    (functions / "_quorlock").write_text(installed.answer("completion", "zsh"))
    setup = "fpath=(~/functions $fpath); autoload -Uz compinit; compinit -u"
    with Terminal("zsh", installed.home, installed.environment(), setup=setup) as terminal:
        terminal.type("quorlock completion b\t> said\r")
        terminal.await_that((installed.home / "said").exists)


def test_what_follows_run_is_left_to_the_commands_own_completion_in_bash(installed: Shell) -> None:
    """The package bash-completion is needed for this."""
    script = """
        eval "$(quorlock completion bash)"
        _command_offset() { echo "from word $1 on: ${COMP_WORDS[$1]}"; }
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
        _quorlock quorlock "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    """
    for number, begun in ((4, "run x -- git"), (6, "run -w 5s x -n git"), (3, "run x git -C y")):
        words = ("quorlock", *begun.split(), "ch")
        done = has_run("bash", script, *words, shell=installed)
        assert done == f"from word {number} on: git\n"


def test_another_request_is_not_answered(bare_shell: Shell) -> None:
    for instruction in ("tcsh_source", "bash_nonsense"):
        bare_shell.complaint(1, given={"_QUORLOCK_COMPLETE": instruction})


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
    """No socket, no rich: what it takes longer than `import click, quorlock` is a few files."""
    brought = loaded(bare_shell, "--help") - after_click()
    ours = {name for name in brought if name.startswith("quorlock")}
    assert ours == {
        "quorlock.__main__",
        *(
            "quorlock._cli",
            "quorlock._cli.main",
            "quorlock._cli.exit_status",
            "quorlock._cli.stdio",
        ),
        "quorlock.errors",
    }
    assert {"socket", "asyncio", "rich", "hiredis", "tomllib", "json"} & brought == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_loads_no_driver(name: str, bare_shell: Shell) -> None:
    """Nor does completion."""
    asked = loaded(bare_shell, name, "--", _QUORLOCK_COMPLETE="bash_complete")
    for brought in (loaded(bare_shell, name, "--help"), asked):
        assert f"quorlock._cli.{COMMANDS[name].module}" in brought
        assert {"socket", "rich", "hiredis"} & brought == set()
        unwanted = ("quorlock._drivers.sync", "quorlock._protocol", "quorlock._demo")
        assert [found for found in brought if found.startswith(unwanted)] == []


@pytest.mark.parametrize("words", [("status",), ("status", "a"), ("top", "--once")], ids=" ".join)
def test_what_is_not_drawn_loads_no_rich(words: tuple[str, ...], shell: Shell) -> None:
    """A terminal alone needs it, and it may be missing."""
    assert "rich" not in loaded(shell, *words)


def test_the_list_of_commands_is_theirs() -> None:
    """Each command is listed with its help."""
    context = click.Context(commands)
    for name, entry in COMMANDS.items():
        command = commands.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
        assert entry.help.endswith(".")
