"""`pentimento generate "a red circle"`."""

import math
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from pentimento.cli.calls import ask_frontdoor, frontdoor_client
from pentimento.cli.connection import PRESENT, connection_options
from pentimento.cli.many_images import Bars, Outcomes, Wish, generate_all, tell
from pentimento.cli.options import FINITE, duration_ms, say
from pentimento.domain.errors import Internal, InvalidArgument
from pentimento.domain.generation import FromNoise, InitImage, Provenance
from pentimento.domain.image_request import (
    Accepted,
    AskedControlNet,
    AskedImagePrompt,
    AskedLora,
    CacheMode,
    Completed,
    GenerateEvent,
    ImageRequest,
    Routed,
)
from pentimento.domain.image_request import Progress as StepsDone
from pentimento.domain.provenance_document import provenance_as_json
from pentimento.files.json_values import check_folder
from pentimento.sdk.generated_image import GeneratedImage

LORA_FORM = "NAME[:SCALE]"
IMAGE_PROMPT_FORM = "NAME:FILE[:SCALE]"
CONTROLNET_FORM = "NAME[@KIND][+PREPROCESSOR]:FILE[:SCALE[:START-END]]"
# The largest input image; servers accept less.
MAX_FILE_BYTES = 64 << 20
_LIMIT_PARTS = 2


def lora_of(text: str) -> AskedLora:
    """Parse `NAME[:SCALE]`; the server validates the values."""
    name, colon, scale = text.partition(":")
    return AskedLora(name, _number("lora", LORA_FORM, scale, text) if colon else None)


def controlnet_of(text: str) -> AskedControlNet:
    """Parse `NAME[@KIND][+PREPROCESSOR]:FILE[:SCALE[:START-END]]` and read the file; its name may contain colons.
    InvalidArgument names the option and its form."""
    named, _, rest = text.partition(":")
    file, limits = _split(rest, text)
    scale = _number("controlnet", CONTROLNET_FORM, limits[0], text) if limits else None
    start, end = _shares(limits[1], text) if len(limits) == _LIMIT_PARTS else (None, None)
    name, _, preprocessor = named.partition("+")
    name, _, kind = name.partition("@")
    return AskedControlNet(name, read_image("controlnet", file), scale, start, end, preprocessor, kind)


def image_prompt_of(text: str) -> AskedImagePrompt:
    """Parse `NAME:FILE[:SCALE]` and read the file. InvalidArgument names the option and its form."""
    name, _, rest = text.partition(":")
    file, scales = _split(rest, text, "image-prompt", IMAGE_PROMPT_FORM)
    if len(scales) > 1:
        raise InvalidArgument.of("image-prompt", f"must be {IMAGE_PROMPT_FORM}, got {text!r}")
    scale = _number("image-prompt", IMAGE_PROMPT_FORM, scales[0], text) if scales else None
    return AskedImagePrompt(name, read_image("image-prompt", file), scale)


def _split(rest: str, text: str, option: str = "controlnet", form: str = CONTROLNET_FORM) -> tuple[Path, list[str]]:
    """Split the text into an existing file and the rest."""
    parts = rest.split(":")
    for count in range(len(parts), max(len(parts) - _LIMIT_PARTS, 1) - 1, -1):
        file = ":".join(parts[:count])
        if file and "\0" not in file and Path(file).is_file():
            return Path(file), parts[count:]
    if not rest:
        raise InvalidArgument.of(option, f"must be {form}, got {text!r}")
    raise InvalidArgument.of(option, f"must be {form} with an existing file, got {text!r}")


def _shares(text: str, whole: str) -> tuple[float, float]:
    start, dash, end = text.partition("-")
    if not dash:
        raise InvalidArgument.of("controlnet", f"must be {CONTROLNET_FORM}, got {whole!r}")
    return _number("controlnet", CONTROLNET_FORM, start, whole), _number("controlnet", CONTROLNET_FORM, end, whole)


def _number(option: str, form: str, text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument.of(option, f"must be {form}, got {whole!r}") from None


def read_image(option: str, file: Path) -> bytes:
    """Return the bytes of an input image. InvalidArgument names the option of a too large file."""
    with file.open("rb") as opened:
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidArgument.of(option, f"must name a file of at most {MAX_FILE_BYTES} bytes, got {file}")
    return data


# Limits of the contract; the server has lower ones.
INT64 = click.IntRange(-(2**63), 2**63 - 1)
# The most images of one request at any server; each one gets a line of output.
COUNT = click.IntRange(1, 100)
UINT64 = click.IntRange(0, 2**64 - 1)
MOST_PX = 2**63 - 1


@click.command()
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option(
    "--prompts-file",
    # utf-8-sig: a byte order mark, which some editors write, must not become part of the first prompt.
    type=click.File(encoding="utf-8-sig", errors="surrogateescape"),
    help="one prompt per line, - for standard input; blank lines are skipped",
)
@click.option("--count", type=COUNT, metavar="N", help="images per prompt, with consecutive seeds")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="PNG to write [image-SEED.png]")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="directory of images without --output; several are PROMPT-INDEX-SEED.png [the current directory]",
)
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="prompts in parallel")
@click.option("--negative-prompt", default="", help="what the image should not show")
@click.option("--model", default="", help="a name from `pentimento status` [the suite's default]")
@click.option("--steps", type=INT64, metavar="N", help="denoising steps [the model's own]")
@click.option("--guidance-scale", type=FINITE, help="weight of the prompt")
@click.option("--scheduler", default="", help="ddim, euler, dpmpp_2m_karras, … [the model's own]")
@click.option("--clip-skip", type=INT64, metavar="N", help="last layers of the CLIP text encoders to leave out [0]")
@click.option(
    "--prompt-syntax",
    default="",
    help="weights of words: a1111, as in (word:1.2), or compel, as in (word)1.2 [plain text]",
)
@click.option("--seed", type=UINT64, metavar="N", help="equal seeds give equal images [random]")
@click.option(
    "--size", metavar="WIDTHxHEIGHT", help="pixels, such as 64x64 [those of --init-image, or the model's own]"
)
@click.option("--init-image", type=PRESENT, help="image to start from")
@click.option(
    "--mask",
    type=PRESENT,
    help="PNG of the size of --init-image: white or transparent where the image may change [where --init-image is"
    " transparent, or everywhere]",
)
@click.option(
    "--strength", type=FINITE, default=0.8, show_default=True, help="how much of --init-image to change, 0 to 1"
)
@click.option("--lora", "loras", multiple=True, metavar=LORA_FORM, help="use this LoRA; may be repeated")
@click.option(
    "--controlnet",
    "controlnets",
    multiple=True,
    metavar=CONTROLNET_FORM,
    help="use this ControlNet with an image, for a range of the steps; may be repeated",
)
@click.option(
    "--image-prompt",
    "image_prompts",
    multiple=True,
    metavar=IMAGE_PROMPT_FORM,
    help="use an image as a part of the prompt, read by this IP-Adapter; may be repeated",
)
@click.option(
    "--preview",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="write a preview every N steps, next to the output",
)
@click.option(
    "--binding-steps/--no-binding-steps",
    default=None,
    help="run all steps under any load; the default with --steps [otherwise the suite may skip some]",
)
@click.option(
    "--feature-reuse/--no-feature-reuse",
    default=None,
    help="reuse deep features of earlier steps where the model's profile allows it, or never [the suite's mode]",
)
@click.option("--no-cache", is_flag=True, help="neither start from the cache nor write to it")
@click.option("--pin", metavar="TIME", help="keep the start for replays (30d, 12h, 90m)")
@click.option("--deadline", type=FINITE, metavar="SECONDS", help="fail after this time")
@click.option("--idempotency-key", default="", help="a repeated call with the same key gets the first one's image")
@connection_options
def generate(prompts: tuple[str, ...], output: Path | None, as_json: bool, **options: Any) -> None:
    """Generate an image for each PROMPT and save PNGs with their provenance. Ctrl-C cancels running requests."""
    prompts = all_prompts(prompts, options["prompts_file"])
    if len(prompts) > 1 or options["count"] not in (None, 1):
        if output is not None:
            raise click.UsageError("--output is for one image; several go to --output-dir")
        if options["preview"]:
            raise click.UsageError("--preview is for one image")
        generate_many(prompts, options, as_json=as_json)
    else:
        generate_one(prompts[0], output, options, as_json=as_json)


def generate_one(prompt: str, output: Path | None, options: dict[str, Any], *, as_json: bool) -> None:
    """Generate, save and describe the image of one prompt."""
    request = request_from(prompt, options)
    folder = options["output_dir"]
    if output is not None:
        check_folder("output", output)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    with frontdoor_client(options) as client:
        events = client.stream(
            request, idempotency_key=options["idempotency_key"], preview_interval_steps=options["preview"]
        )
        with closing(events):
            image = watch(events, output or folder / "image.png", quiet=as_json)
    saved = image.save(output or folder / f"image-{image.provenance.spec.seed}.png")
    say({"file": str(saved), **provenance_as_json(image.provenance)}, summary(saved, image), as_json=as_json)


def all_prompts(given: tuple[str, ...], file: Iterable[str] | None) -> tuple[str, ...]:
    """Return the prompts of the command line, then the file's, one per line. UsageError without a prompt,
    InvalidArgument for one that is not UTF-8."""
    prompts = (*given, *(line.strip() for line in file or () if line.strip()))
    if not prompts:
        raise click.UsageError("give a prompt: PROMPT, or --prompts-file FILE")
    for number, prompt in enumerate(prompts, start=1) if len(prompts) > 1 else ():
        valid_text(prompt, f"prompt {number}")
    return prompts


def generate_many(prompts: Sequence[str], options: dict[str, Any], *, as_json: bool) -> None:
    """Generate, save and describe the images of all prompts. Exits with 1 if one failed; the others are saved."""
    wishes = wishes_of(prompts, options)
    options["output_dir"].mkdir(parents=True, exist_ok=True)
    outcomes = Outcomes(options["output_dir"])
    try:
        with Bars(sum(wish.count for wish in wishes), quiet=as_json) as bars:
            ask_frontdoor(options, lambda client: generate_all(client, wishes, options["parallel"], outcomes, bars))
    finally:
        # Also after an interrupt or on a full disk: hundreds of images may be saved.
        tell(wishes, outcomes, summary, as_json=as_json)
    if outcomes.errors:
        sys.exit(1)


def wishes_of(prompts: Sequence[str], options: dict[str, Any]) -> list[Wish]:
    """Return a wish per prompt. Their common input images are read and stored once."""
    key, first = options["idempotency_key"], request_from(prompts[0], options)
    return [
        Wish(number, replace(first, prompt=prompt), f"{key}-{number}" if key and len(prompts) > 1 else key)
        for number, prompt in enumerate(prompts, start=1)
    ]


def request_from(prompt: str, options: dict[str, Any]) -> ImageRequest:
    """Build a request from the options, unvalidated: the server knows the limits and names them."""
    width, height = parse_size(options["size"])
    return ImageRequest(
        prompt=valid_text(prompt),
        negative_prompt=options["negative_prompt"],
        model=options["model"],
        width_px=width,
        height_px=height,
        num_inference_steps=options["steps"],
        guidance_scale=options["guidance_scale"],
        scheduler=options["scheduler"],
        clip_skip=options["clip_skip"],
        prompt_syntax=options["prompt_syntax"],
        feature_reuse=options["feature_reuse"],
        seed=options["seed"],
        loras=tuple(lora_of(text) for text in options["loras"]),
        controlnets=tuple(controlnet_of(text) for text in options["controlnets"]),
        image_prompts=tuple(image_prompt_of(text) for text in options["image_prompts"]),
        init_image=init_image_from(options["init_image"], options["mask"], options["strength"]),
        cache=CacheMode.OFF if options["no_cache"] else None,
        deadline_ms=deadline_ms(options["deadline"]),
        pin_ms=duration_ms("pin", options["pin"]) if options["pin"] else None,
        binding_steps=options["binding_steps"],
        image_count=options["count"],
    )


def init_image_from(image: Path | None, mask: Path | None, strength: float) -> InitImage | None:
    """Return the image to start from with its mask. Raises UsageError for a mask without an image."""
    if image is None:
        if mask is not None:
            raise click.UsageError("--mask needs --init-image")
        return None
    return InitImage(read_image("init-image", image), strength, read_image("mask", mask) if mask is not None else b"")


def valid_text(prompt: str, field: str = "prompt") -> str:
    """Return a prompt. InvalidArgument for bytes that are not UTF-8, which Python stores as surrogates."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InvalidArgument.of(field, "must be UTF-8 text") from None
    return prompt


def parse_size(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    width, by, height = text.lower().partition("x")
    refused = InvalidArgument.of("size", f"must be WIDTHxHEIGHT in pixels, got {text[:40]!r}")
    try:
        found = int(width), int(height if by else width)
    except ValueError:
        raise refused from None
    # The limit of the contract; the server has a lower one.
    if max(map(abs, found)) > MOST_PX:
        raise refused
    return found


def deadline_ms(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not 0 < seconds <= 86_400:
        raise InvalidArgument.of("deadline", f"must be more than 0 and at most 86400 seconds, got {seconds}")
    return math.ceil(seconds * 1000)


def watch(events: Generator[GenerateEvent, None, None], output: Path, *, quiet: bool) -> GeneratedImage:
    """Wait for an image and return it, with a progress bar on stderr if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("waiting", total=None)
        image: GeneratedImage | None = None
        # Read to its end: a call that the client ends early leaks memory in a server (grpc/grpc#43360).
        for event in events:
            match event:
                case Accepted():
                    bar.update(task, description="accepted")
                case Routed():
                    words = "from noise" if isinstance(event.route.start, FromNoise) else "from the cache"
                    bar.update(task, description=words)
                case StepsDone():
                    bar.update(task, completed=event.step, total=event.step_count)
                    if event.preview:
                        output.with_name(f"{output.stem}-preview.png").write_bytes(event.preview)
                case Completed():
                    image = GeneratedImage.of(event)
    if image is None:
        raise Internal("STREAM_ENDED_EARLY", "the stream ended without an image and without an error")
    return image


def cascade_in_words(provenance: Provenance) -> list[str]:
    """Return a line on the cascade's stages and the final stage; none without a cascade. Without a discriminator the
    first model generates alone, and the next one stands in for it."""
    stages = provenance.route.stages
    models = [stage.model for stage in stages]
    if len(models) < 2:
        return []
    model, confidence = provenance.spec.model, provenance.discriminator_confidence
    ended = f"generated by {model}"
    if not stages[0].discriminator:
        return [f"plan {models[0]}, or {models[1]} if that would be late: {ended}"]
    if model != models[-1] and confidence is not None:
        ended = f"the image of {model} was accepted with confidence {confidence:.2f}"
    elif model == models[-1]:
        ended += f", after {', '.join(models[:-1])}"
    return [f"cascade {' → '.join(models)}: {ended}"]


def summary(saved: Path, image: GeneratedImage) -> str:
    provenance = image.provenance
    size = f"{image.width_px}×{image.height_px}"
    steps = f"{provenance.steps_run} steps"
    if provenance.steps_saved:
        steps += f", {provenance.steps_saved} saved by the cache"
    if provenance.route.thinned_steps:
        steps += f", thinned from step {provenance.route.thinned_steps[0]} on"
    if provenance.route.pipelined_from_step:
        steps += f", residuals a step old from step {provenance.route.pipelined_from_step} on"
    lines = [
        f"{saved}  {size}, {provenance.spec.model}, seed {provenance.spec.seed}, {steps}",
        *cascade_in_words(provenance),
        *(f"note: {note}" for note in provenance.notes),
    ]
    return "\n".join(lines)
