"""`pentimento profile`: measure a model on this machine."""

import asyncio
import sys
from pathlib import Path

import click

from pentimento.cli.forwarding import ForwardingCommand, become
from pentimento.supervisor.models import DEFAULT_ENCODER, find_encoder, find_loras, find_model

MODULE = "services.unet_worker.profiling"
KINDS = {
    "cost": "seconds of a denoising step by size and batch, and memory",
    "reuse": "similarity of prompts at which an image may start from another's latents or, with --light, its image",
    "steps": "steps that may be skipped, and after which step",
    "handover": "steps that a cascade's later model may skip because it starts from the image of --light",
    "lora": "steps that may run before a LoRA takes effect",
}
WITH_ENCODER = ("reuse", "steps", "handover")
PRESENT = click.Path(exists=True, dir_okay=False, path_type=Path)


class ProfileCommand(ForwardingCommand):
    """List the kinds in the help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl(list(KINDS.items()))
        super().format_options(ctx, formatter)


@click.command(cls=ProfileCommand, context_settings={"ignore_unknown_options": True, "help_option_names": []})
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
    """Measure MODEL (a registry name or a diffusers directory) on this machine and write its profile. All kinds but
    cost generate every prompt several times: minutes for hundreds of prompts. `pentimento profile KIND MODEL --help`
    lists the FLAGS."""
    directory = find_loras(loras) if loras is not None else None
    given = {
        "--model": find_model(model).path,
        "--out": out,
        "--prompts": prompts,
        "--light": find_model(light).path if light is not None else None,
        "--loras": directory,
    }
    arguments = [kind, *(word for name, value in given.items() if value is not None for word in (name, str(value)))]
    arguments += [*(["--resume"] if resume else []), *flags]
    if kind not in WITH_ENCODER or embedder_address is not None or "--help" in flags:
        arguments += ["--embedder-address", embedder_address] if embedder_address is not None else []
        become(MODULE, arguments)
    from pentimento.supervisor.beside_embedder import run_beside_embedder

    sys.exit(asyncio.run(run_beside_embedder(find_encoder(encoder).path, MODULE, arguments)))
