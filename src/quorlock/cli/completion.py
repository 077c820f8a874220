"""`quorlock completion`: what a shell needs to complete our commands and options."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorlock.cli.main import complete

if TYPE_CHECKING:
    from typing import Literal


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(*, shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print what makes a shell complete `quorlock`.

    bash, zsh: eval "$(quorlock completion bash)" in ~/.bashrc, or zsh in ~/.zshrc.
    fish: quorlock completion fish > ~/.config/fish/completions/quorlock.fish
    """
    return complete(f"{shell}_source")
