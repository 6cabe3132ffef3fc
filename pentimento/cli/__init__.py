"""The `pentimento` command. A subcommand's module is imported only when called, which keeps `--help` fast."""

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
from pentimento.settings.declaration import SettingsError

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
    "components": "list, keep and delete files of models and LoRAs on this host",
    "serve": "run one service in the foreground",
    "token": "make tokens",
    "tenant": "manage tenants, their keys and quotas, and show usage",
    "journal": "renew a journal that was lost or restored",
    "backup": "copy a suite's ledgers and objects while it serves",
    "restore": "write a backup to empty stores",
    "simulate": "play a scenario in virtual time",
    "profile": "measure a model: costs, reuse, skipped steps, hand-overs, late LoRAs",
    "discriminator": "train a cascade's discriminator on the images that the suite compared",
    "bench": "measure a suite under load",
    "zoo": "train, measure and export the tiny models",
    "completion": "complete this command in a shell",
}
# Modules of subcommands, where they have other names.
MODULES = {
    **dict.fromkeys(("pin", "unpin"), "replay"),
    **dict.fromkeys(("down", "scale"), "control"),
    **dict.fromkeys(("serve", "journal", "backup", "restore", "profile", "bench", "zoo", "completion"), "programs"),
}
# Subcommands of entry points.
PLUGINS = frozenset({"simulate"})

SHOWN_CHARS = 40


class LazyGroup(click.Group):
    """Import subcommands on call; the command NAME is `NAME` of its module (MODULES, or that of the same name)."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in SUBCOMMANDS:
            return None
        if name in PLUGINS:
            command = load_plugin(COMMANDS, name, f"pentimento {name}")
        else:
            command = getattr(importlib.import_module(f"pentimento.cli.{MODULES.get(name, name)}"), name)
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
    """Run the command. An error is one line on stderr, with the exit code 1 (2 for wrong usage, 130 for Ctrl-C)."""
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
        # Arguments may have bytes that are not UTF-8; Python stores them as surrogates, which no message can encode.
        click.echo(f"pentimento: {error.object[:SHOWN_CHARS]!a} must be UTF-8 text", err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"pentimento: {words_of(error)}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def open_closed_streams() -> None:
    """Open the null device for closed standard streams: the next opened file would get the descriptor, and a library's
    output would go into it."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the closed one.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def print_any_text() -> None:
    """Make standard output and error accept every text: characters that their encoding lacks, and bytes of file names
    that are not UTF-8, are written as JSON escapes. Otherwise a saved image could not be reported."""
    codecs.register_error("json-escape", json_escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="json-escape")


def json_escape(error: UnicodeError) -> tuple[str, int]:
    """Return the JSON escapes of characters that cannot be encoded, and the position after them."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def words_of(error: OSError) -> str:
    """Return the system's error and its file."""
    words = error.strerror or str(error)
    return f"{error.filename}: {words}" if error.filename else words


def describe(error: PentimentoError) -> str:
    """Return an error as one line, with its field, or with the option of a missing token."""
    if isinstance(error, Unauthenticated) and error.reason == Reason.TOKEN_REQUIRED:
        return "this suite asks for a token: --token TOKEN or @FILE, or PENTIMENTO_TOKEN"
    if not error.violations:
        return error.message
    return "; ".join(f"{violation.field}: {violation.description}" for violation in error.violations)
