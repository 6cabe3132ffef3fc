"""Commands that forward their flags to another program."""

import click


class ForwardingCommand(click.Command):
    """Handle `--help` only in the first place; after the arguments it is forwarded with the other flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments that click did not parse; a single `--help` prints the command's help."""
        if args[:1] in (["--help"], ["-h"]):
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)
