"""`python -m services.unet_worker.selector_profile --model DIR --prompts FILE --embedder-address ADDRESS`: from which
similarity on the model's latents, and images, may be reused."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pentimento.clients.embedder import EmbedderClient
from pentimento.diffusion.allow_list import check_checkpoint
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.files.folders import make_folder
from pentimento.files.json_values import to_json
from pentimento.files.prompts import read_prompts
from pentimento.policies.selector_profiles import SelectorProfile, profile_to_json
from pentimento.rpc import open_channel, run_service
from pentimento.settings import load_settings
from pentimento.telemetry import configure_logging
from services.unet_worker.settings import HandoverProfileSettings, SelectorProfileSettings, ThinningProfileSettings

Found = TypeVar("Found")
Settings = TypeVar("Settings", SelectorProfileSettings, ThinningProfileSettings, HandoverProfileSettings)

TEXTS_A_CALL, PICTURES_A_CALL = 64, 16


class RemoteEncoder:
    """The embedder that serves, asked from a thread beside the event loop."""

    def __init__(self, client: EmbedderClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors (texts, dimensions)."""
        parts = (texts[start : start + TEXTS_A_CALL] for start in range(0, len(texts), TEXTS_A_CALL))
        return _stacked([each for part in parts for each in self._ask(self._client.embed_text(part))])

    def embed_pictures(self, pictures: Sequence[bytes]) -> NDArray[np.float32]:
        """Return unit vectors (pictures, dimensions)."""
        parts = (pictures[start : start + PICTURES_A_CALL] for start in range(0, len(pictures), PICTURES_A_CALL))
        return _stacked([each for part in parts for each in self._ask(self._client.embed_image(part))])

    def _ask(self, call: Coroutine[Any, Any, Found]) -> Found:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _stacked(embeddings: Sequence[Embedding]) -> NDArray[np.float32]:
    return np.stack([np.frombuffer(embedding.values, "<f4") for embedding in embeddings])


async def main(argv: list[str]) -> None:
    settings = load_settings(SelectorProfileSettings, "bench_selector_profile", argv)
    await study(settings, _measure)


async def study(
    settings: Settings, measure: Callable[[Settings, Sequence[str], RemoteEncoder, tuple[str, str]], None]
) -> None:
    """Call `measure` in a thread with the settings, their prompts, the running embedder, and its encoder's name and
    digest. Raises InvalidArgument for a bad checkpoint or file of prompts, or where its files have no place, before it
    connects; for an encoder that embeds texts only before the first image is generated."""
    check_checkpoint(settings.model)
    prompts = read_prompts(settings.prompts)[: settings.first]
    make_folder("out", settings.out)
    async with open_channel(settings.embedder_address, settings.channels) as channel:
        client = EmbedderClient(channel)
        info = await client.info()
        if not info.embeds_images:
            limit = "must name an encoder that embeds images too, a CLIP directory: quality is measured by it"
            raise InvalidArgument.of("encoder", f"{limit}; {info.encoder_name} embeds texts only")
        encoder = RemoteEncoder(client, asyncio.get_running_loop())
        await asyncio.to_thread(measure, settings, prompts, encoder, (info.encoder_name, info.encoder_digest))


def _measure(
    settings: SelectorProfileSettings, prompts: Sequence[str], encoder: RemoteEncoder, encoder_of: tuple[str, str]
) -> None:
    # Imported here: a wrong flag or a bad checkpoint is answered before torch is loaded.
    from services.unet_worker.models.selector_measuring import measure

    for measured in measure(settings, prompts, encoder, encoder_of):
        profile = measured.profile
        path = settings.out / file_name(profile)
        path.write_text(profile_to_json(profile))
        if settings.samples:
            path.with_suffix(".samples.jsonl").write_text(
                "".join(f"{json.dumps(to_json(outcome))}\n" for outcome in measured.outcomes)
            )
        print(f"{path}\n{described(profile)}", flush=True)


def file_name(profile: SelectorProfile) -> str:
    """Return the name of a profile's file: kind, model, and the model it stands for where that is another."""
    pair = "" if profile.model == profile.reference_model else f"-for-{profile.reference_model}"
    return f"{profile.kind.value}-{profile.model}{pair}.json"


def described(profile: SelectorProfile) -> str:
    """Return the table as text: a line for each K with its threshold by each rule."""
    lines = [f"{profile.name}, {profile.pair_count} pairs", "  K/N     minimum  lower bound  mean"]
    for step in profile.steps:
        shown = (
            f"{value:.3f}" if value is not None else "none" for value in (step.minimum, step.lower_bound, step.mean)
        )
        columns = "  ".join(f"{text:>9}" for text in shown)
        lines.append(f"  {step.skipped_steps:2}/{profile.step_count} {columns}")
    return "\n".join(lines)


if __name__ == "__main__":
    configure_logging("bench_selector_profile", "")
    # Its files are results that its user asked for.
    run_service(main, private=False)
