"""Run one measurement from flags to file: checks, the running embedder, the file after each row, a table as text."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pentimento.clients.embedder import EmbedderClient
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.files.adapter_registry import LORA_BOUNDS_FILE
from pentimento.files.json_values import check_folder
from pentimento.files.lines import read_prompts
from pentimento.files.safetensors_header import model_name
from pentimento.profiles.catalogue import read_profiles, write_profiles
from pentimento.profiles.document import Profile, ProfileKind
from pentimento.rpc import open_channel
from services.unet_worker.profiling.inputs import StudyInputs
from services.unet_worker.profiling.settings import ProfileSettings

Found = TypeVar("Found")

TEXTS_A_CALL, IMAGES_A_CALL = 64, 16
WITH_ENCODER = (ProfileKind.REUSE, ProfileKind.STEPS, ProfileKind.FEATURES, ProfileKind.HANDOVER)
MEASURED = (ProfileKind.COST, *WITH_ENCODER, ProfileKind.LORA)
NEEDS: dict[ProfileKind, tuple[str, ...]] = {
    ProfileKind.COST: (),
    ProfileKind.LORA: ("prompts", "loras"),
    ProfileKind.HANDOVER: ("prompts", "embedder_address", "light"),
}


class RemoteEncoder:
    """Call the running embedder from a thread next to the event loop."""

    def __init__(self, client: EmbedderClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        parts = (texts[start : start + TEXTS_A_CALL] for start in range(0, len(texts), TEXTS_A_CALL))
        return _stacked([each for part in parts for each in self._call(self._client.embed_text(part))])

    def embed_images(self, pictures: Sequence[bytes]) -> NDArray[np.float32]:
        parts = (pictures[start : start + IMAGES_A_CALL] for start in range(0, len(pictures), IMAGES_A_CALL))
        return _stacked([each for part in parts for each in self._call(self._client.embed_image(part))])

    def _call(self, call: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _stacked(embeddings: Sequence[Embedding]) -> NDArray[np.float32]:
    return np.stack([np.frombuffer(embedding.values, "<f4") for embedding in embeddings])


def kind_of(argv: Sequence[str]) -> tuple[ProfileKind | None, list[str]]:
    """Return the kind that the first argument names, and the flags after it; no kind with only `--help`.

    Raises InvalidArgument for another word.
    """
    names = {kind.value: kind for kind in MEASURED}
    if argv and argv[0] in names:
        return names[argv[0]], list(argv[1:])
    if "--help" in argv:
        return None, list(argv)
    raise InvalidArgument.of("kind", f"must be one of {', '.join(names)}, first of all")


async def run(kind: ProfileKind | None, settings: ProfileSettings) -> None:
    """Measure and write the profile.

    Raises InvalidArgument for a missing flag, a bad checkpoint or prompts, or a file without a place, before it
    connects; for an encoder that embeds only texts before the first image is generated.
    """
    assert kind is not None
    _check(kind, settings)
    prompts = read_prompts(settings.prompts)[: settings.first_of(kind)] if settings.prompts is not None else ()
    if kind not in WITH_ENCODER:
        await asyncio.to_thread(measure_and_write, kind, settings, StudyInputs(prompts))
        return
    async with open_channel(settings.embedder_address, settings.channels) as channel:
        client = EmbedderClient(channel)
        info = await client.info()
        if not info.embeds_images:
            limit = "must name an encoder that embeds images too, a CLIP directory: quality is measured by it"
            raise InvalidArgument.of("encoder", f"{limit}; {info.encoder_name} embeds texts only")
        encoder = RemoteEncoder(client, asyncio.get_running_loop())
        inputs = StudyInputs(prompts, encoder, info.encoder_name, info.encoder_digest)
        await asyncio.to_thread(measure_and_write, kind, settings, inputs)


def _check(kind: ProfileKind, settings: ProfileSettings) -> None:
    for name in NEEDS.get(kind, ("prompts", "embedder_address")):
        if not getattr(settings, name):
            raise InvalidArgument.of(name, f"must be given for a profile of kind {kind.value}")
    if kind is ProfileKind.COST and settings.resume:
        raise InvalidArgument.of("resume", "must not be given for costs, which are measured as a whole")
    path = file_of(kind, settings)
    check_folder("out", path)
    if path.exists():
        # Profiles are added to it after minutes of measurement.
        read_profiles([path], "out")
    check_checkpoint(settings.model)
    if settings.light is not None:
        check_checkpoint(settings.light)


def file_of(kind: ProfileKind, settings: ProfileSettings) -> Path:
    if settings.out is not None:
        return settings.out
    if kind is ProfileKind.LORA and settings.loras is not None:
        return settings.loras / LORA_BOUNDS_FILE
    return Path(f"{model_name(settings.model)}-{kind.value}.json")


def measure_and_write(kind: ProfileKind, settings: ProfileSettings, inputs: StudyInputs) -> None:
    """Measure, write the file after each row, and print its rows.

    Raises InvalidArgument for a run to resume without its file, or with a file of another measurement.
    """
    # Imported here: a wrong flag or a bad checkpoint is reported before torch is loaded.
    measure = import_module(f"services.unet_worker.profiling.{kind.value}").measure
    path = file_of(kind, settings)
    if kind is ProfileKind.COST:
        write_profiles(path, costs=[measure(settings)])
        print(path, flush=True)
        return
    found = {}
    earlier = read_profiles([path], "resume").of(kind) if settings.resume else ()
    for profile in measure(settings, replace(inputs, earlier=earlier)):
        write_profiles(path, [profile])
        found[profile.key] = profile
    print("\n".join([str(path), *map(described, found.values())]), flush=True)


def described(profile: Profile) -> str:
    """Return a line for the profile, and one for each row: its place, and the value that each rule allows."""
    of, asked = profile.of, profile.asked
    names = (of.model, of.reference, *(adapter.name for adapter in of.adapters))
    subject = ", ".join(dict.fromkeys(name for name in names if name))
    steps = f"{profile.conditions.step_count} steps{_values(profile.measured.figures)}"
    lines = [f"{profile.kind.value} of {subject}: {steps}, alpha {asked.alpha:g} by {asked.rule.value}"]
    for row in profile.rows:
        found = f"{row.kept} of {row.count} keep alpha{_values(row.figures)}"
        lines.append(f"  {_values(row.at)[2:]}: {found}; allowed: {_values(row.allowed)[2:] or 'nothing'}")
    return "\n".join(lines)


def _values(named: Mapping[str, float]) -> str:
    return "".join(f", {name} {value:g}" for name, value in named.items())
