"""Commands that call another program, and options that have new names."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.child import source_path


class ForwardingCommand(click.Command):
    """Handle `--help` only in the first place; after the arguments it is forwarded with the other flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments that click did not parse; a single `--help` prints the command's help."""
        if args[:1] in (["--help"], ["-h"]):
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


RENAMED = dict.fromkeys(
    ("--profile", "--selector-profiles", "--thinning-profiles", "--pipelining-bounds", "--handover-profile"),
    "--profiles",
)


def become(module: str, arguments: Sequence[str]) -> None:
    """Replace this process by `python -m module`, which has its own exit status and signals."""
    os.environ["PYTHONPATH"] = source_path()
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


def described(module: str, arguments: Sequence[str | Path], reason: str) -> str:
    """Return the JSON that `python -m module` prints of files. FailedPrecondition `reason` with its last line."""
    command = [sys.executable, "-P", "-m", module, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": source_path()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise FailedPrecondition(reason, lines[-1])
    return done.stdout


class RenamedOptions(click.Command):
    """Refuse options of earlier versions and name their successors."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments that click did not parse. Raises UsageError for an option of an earlier version."""
        for word in args:
            if (former := word.partition("=")[0]) in RENAMED:
                raise click.UsageError(f"{former} is now {RENAMED[former]} FILE|DIR, for all kinds", ctx)
        return super().parse_args(ctx, args)
