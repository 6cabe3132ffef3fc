"""`pentimento completion bash`."""

import click
from click.shell_completion import get_completion_class

from pentimento.cli import cli

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL: `eval "$(pentimento completion bash)"`, or for fish
    `pentimento completion fish | source`."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "pentimento", "_PENTIMENTO_COMPLETE").source())
