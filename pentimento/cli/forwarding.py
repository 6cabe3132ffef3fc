"""Commands whose flags go on to another program."""

import click


class ForwardingCommand(click.Command):
    """Takes `--help` as its own where it comes first; behind the arguments it goes on with the other flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what click left over; `--help` alone ends the command with its help."""
        if args[:1] in (["--help"], ["-h"]):
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)
