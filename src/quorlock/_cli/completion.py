"""`quorlock completion`: shell completion scripts, and the replies to their requests.

click finds the candidates. The words after `run ... --` are left to the shell.

A script calls `quorlock` with the words before the cursor, the unfinished one last, and
_QUORLOCK_COMPLETE=SHELL_complete. Each line of the reply is a type (plain, file or dir), a value
and its help text, separated by tabs. click's own scripts are not used. They offer no candidates
after `--option=` (zsh replaces the option with the value) and none after `--`; in fish they cut
help texts at the first comma.
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
    local type value meaning word
    COMPREPLY=()
    for ((word = 2; word < COMP_CWORD; word++)); do
        if [[ ${COMP_WORDS[1]} == run && ${COMP_WORDS[word]} == -- ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset $((word + 1))
            elif ((word + 1 == COMP_CWORD)); then
                mapfile -t COMPREPLY < <(compgen -A command -- "$2")
            else
                compopt -o default
            fi
            return
        fi
    done
    while IFS=$'\\t' read -r type value meaning; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(_QUORLOCK_COMPLETE=bash_complete "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o nosort -F _quorlock quorlock
"""

_ZSH = """\
#compdef quorlock
_quorlock() {
    local type value meaning
    local -a offered
    local -i end=${words[(i)--]}
    if [[ $words[2] == run ]] && ((end < CURRENT)); then
        shift $end words
        ((CURRENT -= end))
        _normal
        return
    fi
    while IFS=$'\\t' read -r type value meaning; do
        case $type in
            plain) offered+=("${value//:/\\\\:}${meaning:+:$meaning}") ;;
            file) compset -P '--*='; _files ;;
            dir) compset -P '--*='; _files -/ ;;
        esac
    done < <(_QUORLOCK_COMPLETE=zsh_complete ${(Q)words[1]} "${(@Q)words[2,CURRENT-1]}" \\
        "${(Q)PREFIX}" 2>/dev/null)
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
    set -l end (contains -i -- -- $words)
    if test "$words[2]" = run; and set -q end[1]
        set -e words[1..$end]
        complete -C (string join ' ' -- (string escape -- $words) $word)
        return
    end
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
        end
    end
end
complete --command quorlock --no-files --keep-order --arguments '(__quorlock_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
def command(*, shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print a shell completion script for `quorlock`, and after `run ... --` for the command.

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
    # bash splits words at `=`. The other shells do not, and replace the whole word.
    if words[-1:] == ["="]:
        words = words[:-1]
    option, equals, value = word.partition("=")
    is_whole = bool(equals) and option.startswith("--")
    if is_whole:
        words, word = [*words, option], value
    items = ShellComplete(commands, {}, commands.name or "", "").get_completions(words, word)
    before = f"{option}=" if is_whole else ""
    return [CompletionItem(f"{before}{it.value}", it.type, it.help) for it in items]
