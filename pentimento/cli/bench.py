"""`pentimento bench`: profiles of models; load, report, allocation and trace-study are the lab's."""

import asyncio
import os
import sys
from pathlib import Path

import click

from pentimento.cli.forwarding import ForwardingCommand
from pentimento.domain.errors import InvalidArgument
from pentimento.plugins import COMMANDS, load_plugin
from pentimento.supervisor.child import source_path
from pentimento.supervisor.models import DEFAULT_ENCODER, find_encoder, find_loras, find_model

PLUGINS = {
    "load": "play a workload on a running suite",
    "report": "compare runs",
    "allocation": "draw how the allocation moved",
    "trace-study": "study what a cache could reuse of a log of prompts",
}
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)


class BenchGroup(click.Group):
    """Know the lab's subcommands by name and one line, and import them when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*super().list_commands(context), *PLUGINS]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in PLUGINS:
            return super().get_command(context, name)
        command = load_plugin(COMMANDS, f"bench.{name}", f"pentimento bench {name}")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(formatter.width)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([*rows, *PLUGINS.items()])


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure this machine, or a suite under load."""


@bench.command(cls=ForwardingCommand, context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("model")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def profile(model: str, flags: tuple[str, ...]) -> None:
    """Measure what MODEL (a registry name or a diffusers directory) costs here: seconds of a denoising step by size and
    batch, and memory. `pentimento bench profile MODEL --help` lists the FLAGS."""
    os.environ["PYTHONPATH"] = source_path()
    command = [sys.executable, "-P", "-m", "services.unet_worker.profile", "--model", str(find_model(model).path)]
    os.execv(sys.executable, [*command, *flags])


@bench.command("selector-profile", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--prompts", type=PRESENT, required=True, help="prompts in arrival order (.txt, .tsv, .csv, .jsonl)")
@click.option("--small", metavar="MODEL", help="also profile images that this model refines, against MODEL's own")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder of the cache")
@click.option("--embedder-address", help="a running embedder, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def selector_profile(
    model: str, prompts: Path, small: str | None, encoder: str, embedder_address: str | None, flags: tuple[str, ...]
) -> None:
    """Measure the least similarity of two prompts at which MODEL (a registry name or a diffusers directory) may start
    from the other's latents and keep the image's quality (NIRVANA, Algorithm 1). Generates every prompt from scratch
    and from the nearest earlier one: minutes for hundreds of prompts. `python -m services.unet_worker.selector_profile
    --help` lists further FLAGS."""
    arguments = ["--model", str(find_model(model).path), "--prompts", str(prompts), *flags]
    if small is not None:
        arguments += ["--small-model", str(find_model(small).path)]
    _run_with_encoder("services.unet_worker.selector_profile", arguments, encoder, embedder_address)


@bench.command("thinning-profile", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--prompts", type=PRESENT, required=True, help="prompts (.txt, .tsv, .csv, .jsonl)")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder that measures quality")
@click.option("--embedder-address", help="a running embedder, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def thinning_profile(
    model: str, prompts: Path, encoder: str, embedder_address: str | None, flags: tuple[str, ...]
) -> None:
    """Measure how many steps of MODEL (a registry name or a diffusers directory) may be skipped, and after which step,
    so that the image keeps its quality. Generates every prompt with all steps and with fewer and fewer: minutes
    for hundreds of prompts. `python -m services.unet_worker.thinning_profile --help` lists further FLAGS."""
    arguments = ["--model", str(find_model(model).path), "--prompts", str(prompts), *flags]
    _run_with_encoder("services.unet_worker.thinning_profile", arguments, encoder, embedder_address)


@bench.command("handover-profile", context_settings={"ignore_unknown_options": True})
@click.argument("light")
@click.argument("heavy")
@click.option("--prompts", type=PRESENT, required=True, help="prompts (.txt, .tsv, .csv, .jsonl)")
@click.option("--encoder", default=DEFAULT_ENCODER, show_default=True, help="encoder that measures quality")
@click.option("--embedder-address", help="a running embedder, instead of one started for this")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def handover_profile(
    light: str, heavy: str, prompts: Path, encoder: str, embedder_address: str | None, flags: tuple[str, ...]
) -> None:
    """Measure how many of HEAVY's steps a cascade may skip because HEAVY starts from LIGHT's image (registry names or
    diffusers directories) and keeps its quality (DiffServe, section 5). Generates every prompt with both, and with
    HEAVY from LIGHT's images: minutes for hundreds of prompts. `python -m services.unet_worker.handover_profile
    --help` lists further FLAGS."""
    arguments = ["--model", str(find_model(heavy).path), "--light-model", str(find_model(light).path)]
    arguments += ["--prompts", str(prompts), *flags]
    _run_with_encoder("services.unet_worker.handover_profile", arguments, encoder, embedder_address)


def _run_with_encoder(module: str, arguments: list[str], encoder: str, embedder_address: str | None) -> None:
    """Become `python -m module`, with a running embedder or with a new one."""
    if embedder_address is not None:
        os.environ["PYTHONPATH"] = source_path()
        command = [sys.executable, "-P", "-m", module, *arguments, "--embedder-address", embedder_address]
        os.execv(sys.executable, command)
    from pentimento.supervisor.beside_embedder import run_beside_embedder

    sys.exit(asyncio.run(run_beside_embedder(find_encoder(encoder).path, module, arguments)))


@bench.command("lora-bound", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--loras", required=True, metavar="tiny|DIR", help="directory of LoRAs; `tiny`: the tiny models' LoRAs")
@click.option("--prompts", type=PRESENT, required=True, help="prompts (.txt, .tsv, .csv, .jsonl)")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def lora_bound(model: str, loras: str, prompts: Path, flags: tuple[str, ...]) -> None:
    """Measure how many steps of MODEL (a registry name or a diffusers directory) may run before a LoRA takes effect, so
    that the image equals the one with the LoRA from the start (Katz, section 6). Generates every prompt without, with
    and with a late LoRA: minutes per LoRA. `python -m services.unet_worker.lora_bound --help` lists further FLAGS."""
    os.environ["PYTHONPATH"] = source_path()
    directory = find_loras(loras)
    if directory is None:
        raise InvalidArgument.of("loras", "must name a directory")
    arguments = ["--model", str(find_model(model).path), "--loras", str(directory), "--prompts", str(prompts)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "services.unet_worker.lora_bound", *arguments, *flags])
