"""`quorlock completion`: shell completion scripts, and the replies to their requests.

click finds the candidates. The command of `run` is left to the shell.

A script calls `quorlock` with the words before the cursor, the unfinished one last, and
_QUORLOCK_COMPLETE=SHELL_complete. Each line of the reply is a type (plain, file or dir), a value
and its help text, separated by tabs; or the type `command` and the number of words before the
command of `run`. click's own scripts are not used. They offer no candidates after `--option=` (zsh
replaces the option with the value) and none after `--`; in fish they cut help texts at the first
comma.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, ShellComplete

if TYPE_CHECKING:
    from typing import Literal

_BASH = """\
_quorlock() {
    local type value meaning word rest line=$COMP_LINE begin=0 number
    local -a whole=() first=()
    COMPREPLY=()
    # bash also splits words at `=` and `:`.
    for ((number = 0; number <= COMP_CWORD; number++)); do
        word=${COMP_WORDS[number]} rest=${line#"${line%%[![:space:]]*}"}
        if [[ $rest == "$line" ]] && ((number)); then
            whole[-1]+=$word
        else
            whole+=("$word") first+=("$number")
        fi
        line=${rest#"$word"}
    done
    [[ $word == [=:] ]] && word=
    local before=${whole[-1]%"$word"}
    while IFS=$'\\t' read -r type value meaning; do
        case $type in
            plain) COMPREPLY+=("${value#"$before"}") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
            command) begin=${first[value]} ;;
        esac
    done < <(_QUORLOCK_COMPLETE=bash_complete "$1" "${whole[@]:1}" 2>/dev/null)
    ((begin)) || return
    if declare -F _command_offset >/dev/null; then
        _command_offset "$begin"
    elif ((begin == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -A command -- "$2")
    else
        compopt -o default
    fi
}
complete -o nosort -F _quorlock quorlock
"""

_ZSH = """\
#compdef quorlock
_quorlock() {
    local type value meaning
    local -a offered
    local -i begin=0
    while IFS=$'\\t' read -r type value meaning; do
        case $type in
            plain) offered+=("${value//:/\\\\:}${meaning:+:$meaning}") ;;
            file) compset -P '--*='; _files ;;
            dir) compset -P '--*='; _files -/ ;;
            command) begin=value ;;
        esac
    done < <(_QUORLOCK_COMPLETE=zsh_complete ${(Q)words[1]} "${(@Q)words[2,CURRENT-1]}" \\
        "${(Q)PREFIX}" 2>/dev/null)
    if ((begin)); then
        shift $begin words
        ((CURRENT -= begin))
        _normal
        return
    fi
    (($#offered)) && _describe -V quorlock offered
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _quorlock "$@"
else
    (($+functions[compdef])) || { autoload -Uz compinit && compinit -i }
    compdef _quorlock quorlock
fi
"""

_FISH = """\
function __quorlock_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    for line in (env _QUORLOCK_COMPLETE=fish_complete $words "$word" 2>/dev/null)
        set -l fields (string split \\t -- $line)
        set -l option (string match -r -- '^--[^=]*=' "$word")
        set -l begun (string replace -r -- '^--[^=]*=' '' "$word")
        switch $fields[1]
            case plain
                printf '%s\\t%s\\n' $fields[2] "$fields[3]"
            case file
                printf '%s\\n' "$option"(__fish_complete_path $begun)
            case dir
                printf '%s\\n' "$option"(__fish_complete_directories $begun)
            case command
                set -e words[1..$fields[2]]
                complete -C (string join ' ' -- (string escape -- $words) $word)
        end
    end
end
complete --command quorlock --no-files --keep-order --arguments '(__quorlock_complete)'
"""

_BEFORE_RUN = len(("quorlock", "run"))
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SCRIPTS)), metavar="bash|zsh|fish")
def command(*, shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a shell completion script for `quorlock`, and for the command of `run`.

    \b
    bash 4.4+, in ~/.bashrc: eval "$(quorlock completion bash)"
    zsh, in ~/.zshrc:        eval "$(quorlock completion zsh)"
    fish: quorlock completion fish > ~/.config/fish/completions/quorlock.fish
    """  # noqa: D301 (click wants the character)
    sys.stdout.write(_SCRIPTS[shell])
    return 0


def complete(instruction: str, commands: click.Command) -> int:
    """Carry out a shell's request, `bash_source` or `bash_complete`, for these commands."""
    shell, _, wanted = instruction.partition("_")
    if shell not in _SCRIPTS or wanted not in ("source", "complete"):
        return 1
    if wanted == "source":
        sys.stdout.write(_SCRIPTS[shell])
    else:
        *words, word = sys.argv[1:] or [""]
        for item in _offered(commands, words, word):
            sys.stdout.write(f"{item.type}\t{item.value}\t{item.help or ''}\n")
    return 0


def _offered(commands: click.Command, words: list[str], word: str) -> list[CompletionItem]:
    if words[:1] == ["run"]:
        from quorlock._cli.run.command import command as run

        if (at := run.command_at(words[1:], word)) is not None:
            return [CompletionItem(str(at + _BEFORE_RUN), type="command")]
    option, equals, value = word.partition("=")
    is_whole = bool(equals) and option.startswith("--")
    if is_whole:
        words, word = [*words, option], value
    items = ShellComplete(commands, {}, commands.name or "", "").get_completions(words, word)
    before = f"{option}=" if is_whole else ""
    return [CompletionItem(f"{before}{it.value}", it.type, it.help) for it in items]
