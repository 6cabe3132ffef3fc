"""What the frontdoor journals of a request: all of it comes back, or it is refused."""

from dataclasses import fields, replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from pentimento.api.frontdoor.v1 import journal_pb2 as pb
from pentimento.domain.errors import Internal
from pentimento.domain.generation import (
    ControlNetSelection,
    GenerationSpec,
    InitImage,
    LoraSelection,
    ObjectReference,
    Scheduler,
    SpecInput,
)
from pentimento.domain.image_request import AskedLora, CacheMode, ImageFormat, ImageRequest, ResolvedRequest
from pentimento.wire.image import request_to_proto
from pentimento.wire.journal import (
    JOURNALLED_REQUEST,
    PUBLIC_REQUEST,
    journalled_from_proto,
    journalled_to_proto,
    resolved_from_bytes,
    resolved_to_bytes,
)

SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 10, 3.0, Scheduler.EULER, 7)
RESOLVED = ResolvedRequest(SPEC, CacheMode.OFF, ImageFormat.WEBP, None, 5_000)

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: WORDS,
    FieldDescriptor.TYPE_BOOL: st.just(True),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
}


@st.composite
def messages(draw: st.DrawFn, kind: type[Message]) -> Message:
    """A message with every field of its contract set, whatever those are by now; of alternatives the last."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.containing_oneof is not None and field != field.containing_oneof.fields[-1]:
            continue
        if field.message_type is not None:
            nested = messages(field.message_type._concrete_class)  # type: ignore[attr-defined]
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(nested, min_size=1, max_size=2)))
            else:
                getattr(message, field.name).CopyFrom(draw(nested))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(VALUES[field.type], min_size=1, max_size=3)))
        elif field.enum_type is not None:
            setattr(message, field.name, draw(st.sampled_from(field.enum_type.values[1:])).number)
        else:
            setattr(message, field.name, draw(VALUES[field.type]))
    return message


def whole(kind: type[Any]) -> st.SearchStrategy[Any]:
    """A value with every field drawn, those with a default too."""
    return st.builds(kind, **{field.name: ... for field in fields(kind)})


@pytest.fixture(scope="module", autouse=True)
def _values_with_every_field() -> None:
    st.register_type_strategy(int, st.integers(0, 2**31 - 1))
    st.register_type_strategy(float, st.floats(allow_nan=False))
    st.register_type_strategy(str, WORDS)
    for kind in (InitImage, LoraSelection, ControlNetSelection, ObjectReference, SpecInput, GenerationSpec):
        st.register_type_strategy(kind, whole(kind))


@settings(max_examples=50, deadline=None)
@given(message=messages(pb.JournalledRequest))
def test_every_field_of_the_contract_comes_back(message: pb.JournalledRequest) -> None:
    """A field that is added to the contract and not carried fails here."""
    assert journalled_to_proto(journalled_from_proto(message)) == message


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_every_field_of_a_resolved_request_comes_back(data: st.DataObject) -> None:
    resolved = data.draw(whole(ResolvedRequest))

    assert resolved_from_bytes(resolved_to_bytes(resolved), JOURNALLED_REQUEST) == resolved


def with_unknown_field(message: Message) -> bytes:
    """As a newer version would write it: field 99, a number."""
    return message.SerializeToString() + b"\x98\x06\x01"


def with_unknown_lora_field() -> bytes:
    lora = with_unknown_field(journalled_to_proto(RESOLVED).spec.loras.add(name="neon"))
    spec = journalled_to_proto(RESOLVED).spec.SerializeToString() + b"\x5a" + bytes([len(lora)]) + lora
    return b"\x0a" + bytes([len(spec)]) + spec


def asked_with_a_lora() -> bytes:
    asked = ImageRequest("a red circle", scheduler="ddim", loras=(AskedLora("neon"),))
    return request_to_proto(asked).SerializeToString()


@pytest.mark.parametrize(
    ("body", "body_format"),
    [
        pytest.param(with_unknown_field(journalled_to_proto(RESOLVED)), JOURNALLED_REQUEST, id="a newer field"),
        pytest.param(with_unknown_lora_field(), JOURNALLED_REQUEST, id="a newer field deep inside"),
        pytest.param(asked_with_a_lora(), PUBLIC_REQUEST, id="a LoRA from before there were any"),
        pytest.param(b"\xff\xff", JOURNALLED_REQUEST, id="no message"),
        pytest.param(b"", JOURNALLED_REQUEST, id="nothing"),
        pytest.param(resolved_to_bytes(RESOLVED), 2, id="a newer format"),
        pytest.param(resolved_to_bytes(RESOLVED), PUBLIC_REQUEST, id="another format"),
    ],
)
def test_what_is_not_understood_is_refused(body: bytes, body_format: int) -> None:
    with pytest.raises(Internal) as caught:
        resolved_from_bytes(body, body_format)

    assert caught.value.reason == "UNREADABLE_REQUEST"


def test_what_the_version_before_journalled_is_read_with_all_that_it_asks_for() -> None:
    """It kept the public request with every default filled in."""
    request = ImageRequest(
        prompt="a red circle",
        negative_prompt="blue",
        model="tiny",
        width_px=32,
        height_px=24,
        num_inference_steps=10,
        guidance_scale=0.0,
        scheduler="dpmpp_2m",
        eta=0.25,
        seed=0,
        init_image=InitImage(b"png", 0.5),
        cache=CacheMode.READ,
        format=ImageFormat.JPEG,
        quality=0.0,
        deadline_ms=5_000,
    )

    resolved = resolved_from_bytes(request_to_proto(request).SerializeToString(), PUBLIC_REQUEST)

    spec = GenerationSpec("a red circle", "blue", "tiny", 32, 24, 10, 0.0, Scheduler.DPM_SOLVER_PP_2M, 0, 0.25)
    expected = replace(spec, init_image=InitImage(b"png", 0.5))
    assert resolved == ResolvedRequest(expected, CacheMode.READ, ImageFormat.JPEG, 0.0, 5_000)
