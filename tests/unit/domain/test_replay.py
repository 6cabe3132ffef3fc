"""Replay an image from its provenance, and reject impossible replays."""

import hashlib
from dataclasses import replace

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import (
    CascadeStage,
    ControlNetMode,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    InitImage,
    NoiseForm,
    ObjectReference,
    Provenance,
    SpecInput,
    Start,
)
from pentimento.domain.replay import ancestor_of, replayed_route, start_taken, thinned_steps_of, with_replayed_inputs
from tests.support.values import a_provenance, a_route, a_spec

BARE = a_spec(init_image=InitImage(b"", 0.5))
DONOR = Donor("entry", "sha256:1", 0.9)
OBJECT = ObjectReference("latents/x", "sha256:1", 2048)
LATENT = FromLatent(OBJECT, 5, 10, 1.5, DONOR)
IMAGE = FromImage(OBJECT, 4, NoiseForm.VARIANCE_PRESERVING, DONOR)
DATA = b"a picture"
INPUT = SpecInput("init_image.image", ObjectReference("", f"sha256:{hashlib.sha256(DATA).hexdigest()}", len(DATA)))


def provenance(start: Start, steps_saved: int = 0) -> Provenance:
    stages = (CascadeStage("light", "light>tiny", 0.5), CascadeStage("tiny"))
    route = a_route(start=start, stages=stages, reason="as it was")
    return a_provenance(request_id="r-1", route=route, steps_run=10 - steps_saved, steps_saved=steps_saved)


@pytest.mark.parametrize(("start", "saved", "taken"), [(FromNoise(), 0, (6, 8)), (LATENT, 5, (6, 8)), (LATENT, 0, ())])
def test_thinned_steps_of_unused_start_are_none(start: Start, saved: int, taken: tuple[int, ...]) -> None:
    assert thinned_steps_of(a_route(start=start, thinned_steps=(6, 8)), saved) == taken


@pytest.mark.parametrize(
    ("start", "saved"), [(FromNoise(), 0), (LATENT, 5), (replace(LATENT, renoised_steps=2), 3), (IMAGE, 4)]
)
def test_replayed_route_keeps_start_in_one_stage(start: Start, saved: int) -> None:
    route = replayed_route(provenance(start, saved), "sha256:model")

    assert (route.start, route.model, route.model_digest) == (start, "tiny", "sha256:model")
    assert (route.replay_of, route.stages) == ("r-1", ())


@pytest.mark.parametrize("planned", [LATENT, IMAGE])
def test_start_taken_without_saved_steps_is_noise(planned: Start) -> None:
    assert start_taken(provenance(planned, steps_saved=0)) == FromNoise()


def test_start_taken_of_image_without_saved_steps_is_image() -> None:
    image = replace(IMAGE, start_step=0)

    assert start_taken(provenance(image, steps_saved=0)) == image


def test_replayed_route_keeps_pipelined_step() -> None:
    recorded = provenance(FromNoise())
    pipelined = replace(recorded.route, controlnet_mode=ControlNetMode.PIPELINED, pipelined_from_step=4)

    route = replayed_route(replace(recorded, route=pipelined), "sha256:model")

    assert (route.controlnet_mode, route.pipelined_from_step) == (ControlNetMode.PIPELINED, 4)


def test_replayed_route_of_other_weights_is_refused() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        replayed_route(provenance(FromNoise()), "sha256:newer")

    assert caught.value.reason == "MODEL_CHANGED"
    assert "sha256:newer" in caught.value.message and "sha256:model" in caught.value.message


@pytest.mark.parametrize(("start", "ancestor"), [(FromNoise(), None), (LATENT, OBJECT), (IMAGE, OBJECT)])
def test_ancestor_of_start_is_object_it_reads(start: Start, ancestor: ObjectReference | None) -> None:
    assert ancestor_of(start) == ancestor


def test_with_replayed_inputs_restores_bytes() -> None:
    whole = with_replayed_inputs(BARE, (INPUT,), {"init_image.image": DATA})

    assert whole.init_image == InitImage(DATA, 0.5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "which are not kept here"),
        ({"init_image.image": b"another"}, hashlib.sha256(b"another").hexdigest()),
        ({"init_image.image": DATA, "loras": b""}, "must hold only what the request came with"),
    ],
)
def test_with_replayed_inputs_refuses_other_bytes(given: dict[str, bytes], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        with_replayed_inputs(BARE, (INPUT,), given)

    assert said in caught.value.message and caught.value.violations[0].field == "inputs"
