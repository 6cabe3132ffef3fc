"""Routes and inputs of replays: bit-equal to the first image, or refused. Inputs are the large parts of a
spec: every field of bytes, by its place in it ("controlnets[0].conditioning_image")."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import (
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    ObjectReference,
    Provenance,
    Route,
    SpecInput,
    Start,
)
from pentimento.domain.shapes import fields_of


def take_inputs(spec: GenerationSpec) -> tuple[GenerationSpec, dict[str, bytes]]:
    """The spec without its bytes, and the bytes by their place."""
    taken: dict[str, bytes] = {}

    def take(place: str, data: bytes) -> bytes:
        if data:
            taken[place] = data
        return b""

    return _mapped(spec, "", take), taken


def put_inputs(spec: GenerationSpec, inputs: Mapping[str, bytes]) -> GenerationSpec:
    """The spec with each of `inputs` in its place. ValueError for one that has none."""
    missing = dict(inputs)
    whole: GenerationSpec = _mapped(spec, "", lambda place, data: missing.pop(place, data))
    if missing:
        raise ValueError(f"a spec has no {sorted(missing)}")
    return whole


def _mapped(value: Any, place: str, change: Callable[[str, bytes], bytes]) -> Any:
    """The value with every field of bytes in it changed."""
    if isinstance(value, bytes):
        return change(place, value)
    if isinstance(value, tuple):
        items = tuple(_mapped(item, f"{place}[{index}]", change) for index, item in enumerate(value))
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    changed = {}
    for field in fields_of(type(value)):
        old = getattr(value, field.name)
        # Most fields of a spec are numbers and words.
        if isinstance(old, bytes | tuple) or fields_of(type(old)):
            new = _mapped(old, f"{place}.{field.name}" if place else field.name, change)
            if new is not old:
                changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value


# Digests are shown no further than this.
_SHOWN_LENGTH = 80


def replayed_route(provenance: Provenance, held_digest: str) -> Route:
    """Return the route that generates the recorded image again, by a model of the digest `held_digest`: one stage,
    the same model, the start that was taken. Raises FailedPrecondition MODEL_CHANGED for another digest."""
    if held_digest != provenance.model_digest:
        name, was = provenance.spec.model, provenance.model_digest[:_SHOWN_LENGTH]
        message = f"model: {name} is held as {held_digest[:_SHOWN_LENGTH]} now, the picture was painted by {was}"
        raise FailedPrecondition("MODEL_CHANGED", message)
    return Route(
        route_id="",
        start=start_taken(provenance),
        model=provenance.spec.model,
        model_digest=provenance.model_digest,
        lora_patch_step=provenance.route.lora_patch_step,
        controlnet_mode=provenance.route.controlnet_mode,
        pipelined_from_step=provenance.route.pipelined_from_step,
        thinned_steps=provenance.route.thinned_steps,
        full_steps=provenance.route.full_steps,
        reason=f"replay of {provenance.request_id}",
        replay_of=provenance.request_id,
    )


def start_taken(provenance: Provenance) -> Start:
    """Return the start that was taken. A worker that could not use the route's donor started from noise and saved no
    step."""
    return taken_of(provenance.route.start, provenance.steps_saved)


def taken_of(planned: Start, steps_saved: int) -> Start:
    """Return the start that a worker took, by the steps that it saved: noise where it saved none."""
    return FromNoise() if planned.saved_steps and not steps_saved else planned


def ancestor_of(start: Start) -> ObjectReference | None:
    """Return the object that the start reads; None for noise."""
    match start:
        case FromLatent(latent=reference) | FromImage(image=reference):
            return reference
        case FromNoise():
            return None


def with_replayed_inputs(
    spec: GenerationSpec, recorded: Sequence[SpecInput], given: Mapping[str, bytes]
) -> GenerationSpec:
    """Return the recorded spec with the bytes that it was sent with the first time. Raises InvalidArgument, naming the
    place, for bytes that are missing, that are others, or that the request did not come with."""
    wanted = {part.field: part.object for part in recorded}
    for place in given:
        if place not in wanted:
            raise InvalidArgument.of("inputs", f"must hold only what the request came with, not {place[:80]!r}")
    for place, reference in wanted.items():
        _check_input(place, reference, given.get(place))
    return put_inputs(spec, given)


def _check_input(place: str, reference: ObjectReference, data: bytes | None) -> None:
    wanted = f"must hold {place}: the {reference.size_bytes} bytes of {reference.digest}"
    if data is None:
        raise InvalidArgument.of("inputs", f"{wanted}, which are not kept here")
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    if digest != reference.digest:
        raise InvalidArgument.of("inputs", f"{wanted}, got {digest}")


def thinned_steps_of(route: Route, saved_steps: int) -> tuple[int, ...]:
    """Return the steps that an attempt of a route takes once its start is known, from the first of these steps on;
    empty where the start was passed over. Thinning of hits was measured on hits."""
    return route.thinned_steps if taken_of(route.start, saved_steps) == route.start else ()


def full_steps_of(route: Route, saved_steps: int) -> tuple[int, ...]:
    """Return the steps of an attempt that run the whole network, as `thinned_steps_of` does; empty for all."""
    return route.full_steps if taken_of(route.start, saved_steps) == route.start else ()
