"""The `pentimento` command. Each subcommand's module is imported when it is called, so that `--help` stays quick."""

import codecs
import importlib
import io
import json
import os
import sys

import click

from pentimento.domain.errors import PentimentoError, Unauthenticated
from pentimento.domain.reasons import Reason
from pentimento.plugins import COMMANDS, load_plugin
from pentimento.settings.errors import SettingsError

SUBCOMMANDS = {
    "up": "start the suite as local processes and keep it up",
    "down": "stop the suite that runs here",
    "generate": "generate images from prompts",
    "jobs": "submit requests that run without you, list them, wait for them",
    "replay": "generate an image again, from its saved file",
    "pin": "keep what an image started from, for later replays",
    "unpin": "end a pin",
    "status": "show the fleet",
    "models": "register models and cascades, list and remove them",
    "scale": "change the number of processes of a service",
    "adapters": "add, list and remove LoRAs while the suite serves",
    "serve": "run one service in the foreground",
    "token": "make tokens",
    "tenant": "manage tenants, their keys and quotas, and show usage",
    "journal": "renew a journal that was lost or restored",
    "simulate": "play a scenario in virtual time",
    "bench": "measure what a model costs, or a suite under load",
    "zoo": "train, measure and export the tiny models",
    "completion": "complete this command in a shell",
}
# Subcommands that an entry point names.
PLUGINS = frozenset({"simulate"})

SHOWN_CHARS = 40


class LazyGroup(click.Group):
    """Knows the subcommands by name and one line; `module:command` of each is `pentimento.cli.NAME:NAME`."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in SUBCOMMANDS:
            return None
        if name in PLUGINS:
            command = load_plugin(COMMANDS, name, f"pentimento {name}")
        else:
            command = getattr(importlib.import_module(f"pentimento.cli.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUBCOMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pentimento")
def cli() -> None:
    """Serve text-to-image diffusion models and generate images with them."""


def main() -> None:
    """Entry point: what went wrong is one line on stderr, and the exit code 1 (2 for wrong usage, 130 for Ctrl-C)."""
    open_closed_streams()
    print_any_text()
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("pentimento: stopped", err=True)
        sys.exit(130)
    except PentimentoError as error:
        click.echo(f"pentimento: {describe(error)}", err=True)
        sys.exit(1)
    except SettingsError as error:
        click.echo(f"pentimento: {error}", err=True)
        sys.exit(2)
    except UnicodeEncodeError as error:
        # The shell may hand over bytes that are no UTF-8; Python keeps them as surrogates, which no message carries.
        click.echo(f"pentimento: {error.object[:SHOWN_CHARS]!a} must be UTF-8 text", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"pentimento: {words_of(error)}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def open_closed_streams() -> None:
    """Let what was closed of standard input, output and error be the null device: whatever is opened next would get
    its descriptor, and what a library prints would go there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest descriptor that is free is the one that was closed.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def print_any_text() -> None:
    """Have standard output and error take every character: what their encoding lacks, and bytes of a file's name that
    are no text, are written as JSON writes them. Else a picture would be there and nobody be told of it."""
    codecs.register_error("json-escape", json_escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="json-escape")


def json_escape(error: UnicodeError) -> tuple[str, int]:
    """Return what stands in for characters that cannot be encoded, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def words_of(error: OSError) -> str:
    """Return what the system refused, and of which file."""
    words = error.strerror or str(error)
    return f"{error.filename}: {words}" if error.filename else words


def describe(error: PentimentoError) -> str:
    """One line that names the field where there is one, and the option of a token that lacks."""
    if isinstance(error, Unauthenticated) and error.reason == Reason.TOKEN_REQUIRED:
        return "this suite asks for a token: --token TOKEN or @FILE, or PENTIMENTO_TOKEN"
    if not error.violations:
        return error.message
    return "; ".join(f"{violation.field}: {violation.description}" for violation in error.violations)
