"""Test that bad input is named and changes nothing, and that the next valid call succeeds."""

import logging
import math
import struct
from copy import copy
from dataclasses import replace
from typing import TypeVar

import pytest

from pentimento.domain.cache import CacheScope, LookupCandidate
from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import CapturedEntries, FromLatent
from tests.support.gateways import DIMENSION_COUNT, ENCODER, RunningGateway, attempt, embedding, scope

Value = TypeVar("Value")

BAD_SCOPES: list[tuple[str, object]] = [
    ("tenant", ""),
    ("tenant", "a\0b"),
    ("tenant", "t" * 257),
    ("tenant", "*shared*"),
    ("model_digest", ""),
    ("vae_digest", ""),
    ("scheduler_digest", ""),
    ("prediction_type", ""),
    ("width_px", 0),
    ("width_px", 2**31),
    ("height_px", 0),
    ("num_inference_steps", 0),
    ("num_inference_steps", 10**9),
    ("guidance_scale", math.nan),
    ("guidance_scale", math.inf),
    ("adapters_from_step", 51),
]


def vector(*values: float) -> bytes:
    return struct.pack(f"<{DIMENSION_COUNT}f", *values, *([0.0] * (DIMENSION_COUNT - len(values))))


def unchecked(value: Value, **changes: object) -> Value:
    """Return a value that its own class refuses."""
    made = copy(value)
    vars(made).update(changes)
    return made


BAD_EMBEDDINGS: list[tuple[str, Embedding]] = [
    ("encoder_digest", replace(embedding(1), encoder_digest="")),
    ("encoder_digest", replace(embedding(1), encoder_digest="sha256:other")),
    ("dimension_count", Embedding(struct.pack("<2f", 1, 0), 2, ENCODER)),
    ("values", unchecked(embedding(1), values=b"", dimension_count=0)),
    ("values", unchecked(embedding(1), values=vector(1)[:-1])),
    ("values", Embedding(vector(0), DIMENSION_COUNT, ENCODER)),
    ("values", Embedding(vector(math.nan), DIMENSION_COUNT, ENCODER)),
    ("values", Embedding(vector(math.inf), DIMENSION_COUNT, ENCODER)),
    ("values", Embedding(vector(0.5), DIMENSION_COUNT, ENCODER)),
]


async def still_serves(shared: RunningGateway) -> None:
    assert isinstance((await shared.lookup(embedding(1))).start, FromLatent)
    assert shared.held().entry_count == 1


async def test_another_encoder_is_logged_once(shared: RunningGateway, caplog: pytest.LogCaptureFixture) -> None:
    """As with an embedder of another model."""
    await shared.store(embedding(1))

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="encoder_digest"):
                await shared.lookup(embedding(1, encoder="sha256:swapped"))

    assert [record.args for record in caplog.records if "sha256:swapped" in record.getMessage()] == [
        ("text", ENCODER, "sha256:swapped")
    ]
    await still_serves(shared)


async def test_incomplete_scopes_are_refused(shared: RunningGateway) -> None:
    await shared.store(embedding(1))

    for name, value in BAD_SCOPES:
        bad = replace(scope(), **{name: value})  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=name):
            await shared.lookup(embedding(1), bad)
        with pytest.raises(InvalidArgument, match=name):
            await shared.client.reserve(bad, attempt(bad.tenant))
    await still_serves(shared)


async def test_embeddings_that_are_none_are_neither_searched_nor_stored(shared: RunningGateway) -> None:
    await shared.store(embedding(1))
    by = attempt()
    grant = await shared.client.reserve(scope(), by)
    assert grant is not None
    captured = shared.upload(grant)

    for name, bad in BAD_EMBEDDINGS:
        with pytest.raises(InvalidArgument, match=name):
            await shared.lookup(bad)
        with pytest.raises(InvalidArgument, match=name):
            await shared.client.commit(scope(), by, captured, bad)
    await still_serves(shared)


# Candidates and options of a lookup, and the name of the fault.
BAD_LOOKUPS: list[tuple[list[CacheScope], dict[str, float], str]] = [
    *(([scope()], {"quality": quality}, "quality") for quality in (-0.1, 1.1, math.nan)),
    *(
        ([scope()], {"noise_s": noise_s}, "noise_s: must be above 0 and finite")
        for noise_s in (0.0, math.nan, math.inf)
    ),
    ([], {}, "candidates: must be 1 to 16, got 0"),
    ([scope()] * 17, {}, "candidates: must be 1 to 16, got 17"),
    ([scope(), scope("another")], {}, r"candidates\.scope"),
    ([scope(), scope(shared_pool=True)], {}, r"candidates\.scope"),
    ([scope(), scope(model_digest="")], {}, "model_digest"),
]


@pytest.mark.parametrize(("of", "options", "message"), BAD_LOOKUPS)
async def test_lookup_with_a_bad_field_is_refused(
    shared: RunningGateway, of: list[CacheScope], options: dict[str, float], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        await shared.client.lookup([LookupCandidate(one) for one in of], embedding(1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [51, 2**31])
async def test_starts_outside_of_the_schedule_are_refused(shared: RunningGateway, step: int) -> None:
    with pytest.raises(InvalidArgument, match=f"start_step: must be between 0 and 50, got {step}"):
        await shared.client.reserve(scope(), attempt(), step)


async def test_bytes_of_a_tenant_beyond_any_bound_are_refused(shared: RunningGateway) -> None:
    with pytest.raises(InvalidArgument, match="tenant_cache_bytes: must be at most 1152921504606846976"):
        await shared.client.reserve(scope(), attempt(), tenant_cache_bytes=2**60 + 1)

    assert await shared.client.reserve(scope(), attempt(), tenant_cache_bytes=2**60) is not None


@pytest.mark.parametrize(("name", "value"), [("request_id", ""), ("tenant", "other"), ("fencing_token", 2**63)])
async def test_attempts_that_cannot_own_a_grant_are_refused(shared: RunningGateway, name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=name):
        await shared.client.reserve(scope(), unchecked(attempt(), **{name: value}))


async def test_captures_that_could_not_be_resumed_are_refused(shared: RunningGateway) -> None:
    by = attempt()
    grant = await shared.client.reserve(scope(), by)
    assert grant is not None
    captured = shared.upload(grant)
    latent = captured.latents[0]
    for bad in (
        replace(latent, sigma=math.nan),
        replace(latent, sigma=-1.0),
        replace(latent, resume_step=0),
        replace(latent, resume_step=10),
        replace(latent, object=replace(latent.object, digest="md5:0")),
        replace(latent, object=replace(latent.object, size_bytes=0)),
        replace(latent, object=replace(latent.object, size_bytes=2**40 + 1)),
        replace(latent, object=replace(latent.object, key="../../etc/passwd")),
    ):
        with pytest.raises(InvalidArgument):
            await shared.client.commit(scope(), by, CapturedEntries(grant.grant_id, (bad,)), embedding(1))

    assert await shared.client.commit(scope(), by, captured, embedding(1))


async def test_empty_ids_are_refused(shared: RunningGateway) -> None:
    with pytest.raises(InvalidArgument, match="grant_id"):
        await shared.client.release("")
    with pytest.raises(InvalidArgument, match="entry_id"):
        await shared.client.report_bad_object("", "key", "")
