"""`ascend-dump completion`: the script that makes a shell complete verbs, options and paths."""

from __future__ import annotations

import click

from ascend_dump.cli import COMPLETION_VARIABLE, PROGRAM
from ascend_dump.cli.shared.exit import Exit


@click.command(short_help="Print a completion script for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> Exit:
    """Print the completion script of SHELL.

    \b
    bash:  ascend-dump completion bash >> ~/.bashrc
    zsh:   ascend-dump completion zsh  >> ~/.zshrc
    fish:  ascend-dump completion fish > ~/.config/fish/completions/ascend-dump.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    click.echo(kind(context.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE).source())
    return Exit.OK
