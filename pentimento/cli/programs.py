"""Commands that become other programs, or load commands of the lab."""

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from pentimento.cli import cli
from pentimento.cli.connection import PRESENT
from pentimento.domain.errors import FailedPrecondition
from pentimento.plugins import COMMANDS, load_plugin, plugin_module
from pentimento.plugins import SERVICES as SERVICES_GROUP
from pentimento.supervisor.child import SOURCE_ROOT, source_path
from pentimento.supervisor.models import DEFAULT_ENCODER, find_encoder, find_loras, find_model

# Settings of commands with flags of another program.
FORWARDED = {"ignore_unknown_options": True, "help_option_names": []}


class ForwardingCommand(click.Command):
    """Handle `--help` only in the first place; after the arguments it is forwarded with the other flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments that click did not parse; a single `--help` prints the command's help."""
        if args[:1] in (["--help"], ["-h"]):
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


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


SERVICES = {
    "frontdoor": "services.frontdoor",
    "edge": "services.edge",
    "embedder": "services.embedder",
    "vectordb-gateway": "services.vectordb_gateway",
    "unet-worker": "services.unet_worker",
    "controller": "services.controller",
    "controlnet-svc": "services.controlnet_svc",
    "discriminator": "services.discriminator",
}
LAB_SERVICES = ("emulated-worker", "emulated-discriminator", "paced-worker", "paced-controlnets")


@click.command(cls=ForwardingCommand, context_settings=FORWARDED)
@click.argument("service", type=click.Choice(sorted((*SERVICES, *LAB_SERVICES))))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(service: str, flags: tuple[str, ...]) -> None:
    """Run one service in the foreground; FLAGS go to it (`pentimento serve frontdoor --help` lists them)."""
    become(SERVICES.get(service) or plugin_module(SERVICES_GROUP, service, f"pentimento serve {service}"), flags)


@click.group()
def journal() -> None:
    """Repair a frontdoor's journal, where an operator must decide."""


@journal.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def renew(flags: tuple[str, ...]) -> None:
    """Make a lost or restored journal newer than every earlier one: `--ledger-url URL`, or the frontdoor's settings,
    and `--above EPOCH`, which the frontdoor's log names if workers reject it (STALE_EPOCH)."""
    become("services.frontdoor.renewal", flags)


@click.command(cls=ForwardingCommand, context_settings=FORWARDED)
@click.argument("folder")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def backup(folder: str, flags: tuple[str, ...]) -> None:
    """Copy a serving suite's ledgers and objects to a new FOLDER: `--ledger-url URL` for each ledger, `--objects-url
    URL` for each object store, `--key-file FILE` for each key to include."""
    become("pentimento.stores.backup", ("backup", folder, *flags))


@click.command(cls=ForwardingCommand, context_settings=FORWARDED)
@click.argument("folder")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def restore(folder: str, flags: tuple[str, ...]) -> None:
    """Write the backup in FOLDER to empty stores while no process uses them: the `--ledger-url` and `--objects-url` of
    the backup, in the same order; `--above EPOCH` if workers reject the restored journal (STALE_EPOCH)."""
    become("pentimento.stores.backup", ("restore", folder, *flags))


# Module and help of each subcommand of `zoo`.
ZOO = {
    "list": ("zoo.inventory", "the parts, their requirements and progress"),
    "train": ("zoo.train", "train a part, or continue"),
    "export": ("zoo.export", "write trained parts as diffusers directories"),
    "discriminator": ("zoo.export.picture_folders", "fit a discriminator to two folders of images"),
    "prompt-head": ("zoo.export.prompt_head", "fit a discriminator that reads prompts, for the zoo's scenes"),
    "eval": ("zoo.evaluate", "measure the exported models on held-out scenes"),
    "sample": ("zoo.sample", "generate a grid of images from captions"),
    "cards": ("zoo.cards", "write the model cards with their samples and figures"),
}
NEEDED = ("torch", "diffusers", "transformers", "safetensors", "peft", "matplotlib")


@click.group()
def zoo() -> None:
    """Train, measure and export the tiny models, in a checkout of the repository."""


def start(module: str, arguments: tuple[str, ...]) -> None:
    """Replace this process by a module of the zoo, which is neither installed nor imported here. FailedPrecondition if
    the repository or a library is missing."""
    if not (SOURCE_ROOT / "zoo" / "__init__.py").is_file():
        raise FailedPrecondition(
            "ZOO_NOT_HERE",
            f"the zoo is no part of the installed package (there is none in {SOURCE_ROOT}): "
            "take a checkout of the repository, and install it with `pip install --editable`",
        )
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise FailedPrecondition(
            "LIBRARY_MISSING", f"the zoo needs {', '.join(missing)}: `make setup` installs what it needs into .venv"
        )
    for library in ("TRANSFORMERS", "DIFFUSERS"):  # these libraries warn at every import about missing parts
        os.environ.setdefault(f"{library}_VERBOSITY", "error")
    become(module, arguments)


for _name, (_module, _line) in ZOO.items():
    zoo.add_command(
        click.Command(
            _name,
            FORWARDED,
            partial(start, _module),
            [click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            _line,
            add_help_option=False,
        )
    )


MODULE = "services.unet_worker.profiling"
KINDS = {
    "cost": "seconds of a denoising step by size and batch, and memory",
    "reuse": "similarity of prompts at which an image may start from another's latents or, with --light, its image",
    "steps": "steps that may be skipped, and after which step",
    "features": "steps that may reuse deep features of earlier ones",
    "handover": "steps that a cascade's later model may skip because it starts from the image of --light",
    "lora": "steps that may run before a LoRA takes effect",
}
WITH_ENCODER = ("reuse", "steps", "features", "handover")


class ProfileCommand(ForwardingCommand):
    """List the kinds in the help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl(list(KINDS.items()))
        super().format_options(ctx, formatter)


@click.command(cls=ProfileCommand, context_settings=FORWARDED)
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("model")
@click.option("--out", type=click.Path(dir_okay=False), help="file to write [MODEL-KIND.json; LoRAs: next to them]")
@click.option("--resume", is_flag=True, help="keep the file's rows and measure only missing ones")
@click.option("--prompts", type=PRESENT, help="prompts (.txt, .tsv, .csv, .jsonl), for all kinds but cost")
@click.option("--light", metavar="MODEL", help="model that refines the images, or the earlier one of a hand-over")
@click.option("--loras", metavar="tiny|DIR", help="directory of LoRAs; `tiny`: the tiny models' LoRAs")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder of the cache; it measures quality")
@click.option("--embedder-address", help="a running embedder, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def profile(
    kind: str,
    model: str,
    out: str | None,
    resume: bool,
    prompts: Path | None,
    light: str | None,
    loras: str | None,
    encoder: str,
    embedder_address: str | None,
    flags: tuple[str, ...],
) -> None:
    """Measure MODEL (a registry name, a diffusers directory or a single file) on this machine and write its profile.
    All kinds but cost generate every prompt several times: minutes for hundreds of prompts. `pentimento profile KIND
    MODEL --help` lists the FLAGS."""
    given = {
        "--model": find_model(model).path,
        "--out": out,
        "--prompts": prompts,
        "--light": find_model(light).path if light is not None else None,
        "--loras": find_loras(loras) if loras is not None else None,
    }
    arguments = [kind, *(word for name, value in given.items() if value is not None for word in (name, str(value)))]
    arguments += [*(["--resume"] if resume else []), *flags]
    if kind not in WITH_ENCODER or embedder_address is not None or "--help" in flags:
        arguments += ["--embedder-address", embedder_address] if embedder_address is not None else []
        become(MODULE, arguments)
    from pentimento.supervisor.beside_embedder import run_beside_embedder

    sys.exit(asyncio.run(run_beside_embedder(find_encoder(encoder).path, MODULE, arguments)))


BENCHES = {
    "load": "play a workload on a running suite",
    "report": "compare runs",
    "allocation": "draw how the allocation moved",
    "trace-study": "study what a cache could reuse of a log of prompts",
}


class BenchGroup(click.Group):
    """Load the lab's subcommands."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(BENCHES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in BENCHES:
            return None
        command = load_plugin(COMMANDS, f"bench.{name}", f"pentimento bench {name}")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(BENCHES.items()))


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure a suite under load."""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of SHELL: `eval "$(pentimento completion bash)"`, or for fish
    `pentimento completion fish | source`."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "pentimento", "_PENTIMENTO_COMPLETE").source())
