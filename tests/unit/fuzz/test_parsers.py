"""Give damaged files and messages to every parser of outside bytes: it returns a value or raises its own error.

Each example is a whole file or message of the corpus with a few edits. `make fuzz` runs an hour of examples before a
release (FUZZ_EXAMPLES of each parser); a failing example is shrunk and printed, and then belongs into the corpus. The
folder `corpus` has inputs by parser: PARSER.ok-… gives a value, PARSER.bad-… the parser's own error.
"""

import io
import os
import struct
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save
from starlette.requests import Request

from pentimento.api.generation.v1 import generation_pb2
from pentimento.api.image.v1 import image_service_pb2 as image_pb
from pentimento.api.tensor.v1 import tensor_pb2
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker_pb
from pentimento.diffusion.file_layouts import gguf_header, recognise
from pentimento.diffusion.inversions import read_inversion
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import GenerationSpec, ObjectReference, Route
from pentimento.domain.image_request import CacheMode, ImageFormat, ImageRequest, ResolvedRequest, StartImage
from pentimento.domain.prompt_syntax import PromptSyntax, parse_prompt
from pentimento.files.adapter_registry import read_adapters
from pentimento.files.ed25519_keys import new_signing_key, read_signing_keys
from pentimento.files.lora_headers import judge_lora
from pentimento.files.safetensors_header import judge_safetensors
from pentimento.images.decoding import decode as decode_image
from pentimento.images.header import check_whole, read_header
from pentimento.profiles.document import profiles_from_json
from pentimento.rpc.callers import read_rules
from pentimento.rpc.relay.connection import AnswerFrames, CallFrames
from pentimento.rpc.tokens import parse_tokens
from pentimento.settings import SettingsError
from pentimento.stores.objects.store import PathSigner
from pentimento.wire.codec import decode, encode, to_bytes
from pentimento.wire.tensors import tensor_from_proto
from services.controller.scaler import target_of
from services.edge.api.bodies import EditRequest, GenerationRequest
from services.edge.http.bodies import BodyBudget, read_form, read_json
from services.frontdoor.journal.recovery import (
    JOURNALLED_REQUEST,
    resolved_from_bytes,
    resolved_to_bytes,
    start_image_from_bytes,
    start_image_to_bytes,
)
from tests.support.values import a_route, a_spec
from tests.unit.rpc.relay.test_call_frames import found_in

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "120"))
ROOT = Path(__file__).parents[3]
WEIGHTS = ROOT / "zoo" / "weights"
CORPUS = Path(__file__).parent / "corpus"
# Numbers at which lengths and counts go wrong.
EDGES = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"-1", b"1e999", b"NaN", b"\xc0\x80")
SIGNS = (b"9", b"0", b'"', b"[", b"{", b",", b"(", b"\\", b"\n")
FORMATS = (("RGB", "PNG"), ("RGBA", "PNG"), ("P", "PNG"), ("I;16", "PNG"), ("RGB", "JPEG"), ("RGBA", "WEBP"))


@dataclass(frozen=True)
class Parser:
    """Name a parser: whole inputs to begin with, the call, and the errors that its caller handles."""

    name: str
    corpus: Callable[[], Sequence[bytes]]
    parse: Callable[[bytes, Path], object]
    errors: tuple[type[Exception], ...] = (PentimentoError,)


def in_file(parse: Callable[[Path], object], name: str) -> Callable[[bytes, Path], object]:
    """Return the parser of a file as one of its bytes."""

    def parse_bytes(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return parse(path)

    return parse_bytes


def as_text(parse: Callable[[str], object]) -> Callable[[bytes, Path], object]:
    return lambda data, _: parse(data.decode("utf-8", "replace"))


def prompt_in(syntax: PromptSyntax) -> Callable[[bytes, Path], object]:
    return as_text(lambda text: parse_prompt(text, syntax))


def message(kind: type[Message], then: Callable[[Message], object]) -> Callable[[bytes, Path], object]:
    return lambda data, _: then(kind.FromString(data))


def metadata_of(text: str) -> dict[str, str]:
    """Return a trigger's metadata: each line of the text is an entry."""
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


def read_body_of_form(data: bytes, _: Path) -> object:
    """Read a form that arrives in two pieces, and the request of an edit in it."""
    pieces = [data[: len(data) // 2], data[len(data) // 2 :]]

    async def receive() -> dict[str, Any]:
        body = pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    kind = b"multipart/form-data; boundary=b0undary"
    request = Request({"type": "http", "headers": [(b"content-type", kind)]}, receive)
    with BodyBudget(1 << 20, 1 << 20).held("a caller") as held:
        return EditRequest.read_form(finished(read_form(request, held))).to_request()


def finished(running: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        running.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


def follow_frames(data: bytes, _: Path) -> None:
    """Find calls and ends in the bytes of a connection: the same ones in pieces of any size, and no byte is lost."""
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]
    found = found_in([data])
    assert found == found_in(pieces) and found.data == data
    whole, cut = AnswerFrames(), AnswerFrames()
    assert whole.ended_streams(data) == [stream for piece in pieces for stream in cut.ended_streams(piece)]
    rest = bytearray(data)
    passed, _end = CallFrames().overtaking(rest, 0)
    assert len(rest) + sum(map(len, passed)) == len(data)


def images() -> Sequence[bytes]:
    found = []
    for mode, kind in FORMATS:
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new(mode, (48, 32)).save(file, kind, exif=exif)
        found.append(file.getvalue())
    return found


def tensors() -> Sequence[bytes]:
    lora = (WEIGHTS / "tiny-lora-neon" / "pytorch_lora_weights.safetensors").read_bytes()
    vectors = {"emb_params": np.ones((2, 8), np.float32)}
    return [save(vectors, {"format": "pt"}), save({"clip_l": np.ones((1, 8)), "clip_g": np.ones((1, 8))}), lora]


def gguf_files() -> Sequence[bytes]:
    path = Path(os.devnull).parent / "shm" / f"corpus-{os.getpid()}.gguf"
    writer = gguf.GGUFWriter(path, "sd1")
    writer.add_tensor("model.diffusion_model.a", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    path.unlink()
    return [data]


def request() -> bytes:
    asked = ImageRequest("a (red:1.2) circle", seed=3, num_inference_steps=4, negative_prompt="blur")
    return to_bytes(asked, image_pb.ImageRequest)


def journalled() -> bytes:
    return resolved_to_bytes(ResolvedRequest(a_spec(), CacheMode.READ, ImageFormat.PNG, None, 60_000))


def handed() -> bytes:
    image = ObjectReference("results/a", f"sha256:{'0' * 64}", 512)
    return start_image_to_bytes(StartImage(image, 0.5))


def order() -> bytes:
    spec, route = encode(a_spec(), generation_pb2.GenerationSpec), encode(a_route(), generation_pb2.Route)
    return worker_pb.ExecuteRequest(spec=spec, route=route, deadline_remaining_ms=5).SerializeToString()


def kept_only() -> Sequence[bytes]:
    """Return nothing: the folder has inputs."""
    return ()


def profiles() -> Sequence[bytes]:
    folders = ("handover_profiles", "selector_profiles")
    return [path.read_bytes() for folder in folders for path in sorted((ROOT / "zoo" / folder).glob("*.json"))]


PARSERS = (
    Parser("safetensors", tensors, lambda data, _: judge_safetensors(data), (ValueError,)),
    Parser("lora", tensors, lambda data, _: judge_lora(data, "lora")),
    Parser("inversion", tensors, in_file(read_inversion, "word.safetensors")),
    Parser("checkpoint", tensors, in_file(recognise, "model.safetensors")),
    Parser("gguf", gguf_files, in_file(gguf_header, "model.gguf"), (ValueError,)),
    Parser("image header", images, lambda data, _: read_header(data, "image")),
    Parser("whole image", images, lambda data, _: check_whole(data, "image")),
    Parser("pixels", images, lambda data, _: decode_image(data, "image", lambda image: image.load())),
    Parser("registry", lambda: [(WEIGHTS / "registry.json").read_bytes()], in_file(read_adapters, "registry.json")),
    Parser(
        "profiles",
        profiles,
        as_text(profiles_from_json),
        (PentimentoError, ValueError),
    ),
    Parser(
        "tokens",
        kept_only,
        as_text(lambda text: parse_tokens(text, "tokens.toml")),
        (SettingsError,),
    ),
    Parser(
        "signing keys",
        lambda: [f"{new_signing_key()}\n{new_signing_key()}\n".encode()],
        in_file(read_signing_keys, "keys"),
        (SettingsError, PentimentoError),
    ),
    Parser(
        "prompt a1111",
        lambda: [b"a ((red)) [circle] BREAK (b:1.3) \\(c\\)"],
        prompt_in(PromptSyntax.A1111),
    ),
    Parser(
        "prompt compel",
        lambda: [b"a red++ circle- (of two)1.3 \\(c\\)"],
        prompt_in(PromptSyntax.COMPEL),
    ),
    Parser(
        "image request",
        lambda: [request()],
        message(image_pb.ImageRequest, lambda one: decode(one, ImageRequest)),
        (PentimentoError, DecodeError),
    ),
    Parser(
        "order of a worker",
        lambda: [order()],
        message(worker_pb.ExecuteRequest, lambda one: (decode(one.spec, GenerationSpec), decode(one.route, Route))),
        (PentimentoError, DecodeError),
    ),
    Parser(
        "tensor",
        lambda: [tensor_pb2.Tensor(dtype=1, dims=[1, 2, 2], inline=struct.pack("<4f", *range(4))).SerializeToString()],
        message(tensor_pb2.Tensor, tensor_from_proto),
        (PentimentoError, DecodeError),
    ),
    Parser("journalled request", lambda: [journalled()], lambda data, _: resolved_from_bytes(data, JOURNALLED_REQUEST)),
    Parser("journalled image", lambda: [handed()], lambda data, _: start_image_from_bytes(data)),
    Parser("signed path", kept_only, as_text(lambda text: PathSigner(b"k" * 32).verify("results/a", text, 0.0))),
    Parser("json body", kept_only, lambda data, _: GenerationRequest.read(read_json(data)).to_request()),
    Parser("form body", kept_only, read_body_of_form),
    Parser("relayed frames", kept_only, follow_frames),
    Parser("scaler metadata", kept_only, as_text(lambda text: target_of(metadata_of(text)))),
    Parser("rules of callers", kept_only, in_file(read_rules, "callers.toml"), (SettingsError,)),
)


def kept(name: str, verdict: str = "") -> list[Path]:
    """Return the parser's files in the folder, of a verdict, `ok` or `bad`, or all."""
    return sorted(CORPUS.glob(f"{name.replace(' ', '-')}.{verdict}*"))


@cache
def corpus_of(name: str) -> tuple[bytes, ...]:
    parser = next(one for one in PARSERS if one.name == name)
    return (*parser.corpus(), *(path.read_bytes() for path in kept(name)))


@st.composite
def damaged(draw: st.DrawFn, whole: tuple[bytes, ...]) -> bytes:
    """Draw an input of the corpus with up to six edits."""
    data = draw(st.sampled_from(whole))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        # Headers and lengths are at the beginning.
        at = draw(st.sampled_from((at, min(at, 64))))
        kind = draw(st.sampled_from(("flip", "edge", "cut", "repeat", "splice", "digit")))
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << draw(st.integers(0, 7))),)) + data[at + 1 :]
        elif kind == "edge":
            new = draw(st.sampled_from(EDGES))
            data = data[:at] + new + data[at + draw(st.sampled_from((0, len(new)))) :]
        elif kind == "cut":
            data = data[:at] + data[at + draw(st.integers(1, max(len(data) // 2, 1))) :]
        elif kind == "repeat":
            data = data[:at] + data[at : at + draw(st.integers(1, 64))] * draw(st.integers(2, 50)) + data[at:]
        elif kind == "splice":
            other = draw(st.sampled_from(whole))
            data = data[:at] + other[draw(st.integers(0, len(other))) :]
        elif kind == "digit":
            data = (
                data[:at]
                + draw(st.sampled_from((b"9", b"0", b'"', b"[", b"{", b",", b"(", b"\\", b"\n")))
                * draw(st.integers(1, 300))
                + data[at:]
            )
    return data


@pytest.mark.parametrize("parser", PARSERS, ids=[one.name for one in PARSERS])
def test_damaged_input_gives_a_value_or_the_parsers_own_error(parser: Parser, tmp_path: Path) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(damaged(corpus_of(parser.name)))
    def examined(data: bytes) -> None:
        with suppress(*parser.errors):
            parser.parse(data, tmp_path)

    examined()


@pytest.mark.parametrize("parser", PARSERS, ids=[one.name for one in PARSERS])
def test_kept_input_gives_a_value_or_the_parsers_own_error_as_its_name_says(parser: Parser, tmp_path: Path) -> None:
    # A corpus that no parser accepts would try nothing but the first check.
    assert kept(parser.name, "ok-")
    for path in kept(parser.name, "ok-"):
        parser.parse(path.read_bytes(), tmp_path)
    for path in kept(parser.name, "bad-"):
        with pytest.raises(parser.errors):
            parser.parse(path.read_bytes(), tmp_path)


def test_every_kept_input_has_a_parser() -> None:
    known = {path for parser in PARSERS for verdict in ("ok-", "bad-") for path in kept(parser.name, verdict)}

    assert set(CORPUS.iterdir()) == known
