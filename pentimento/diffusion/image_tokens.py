"""Make tokens of an image's encoding with the `image_proj` of an IP-Adapter, in its linear form and in its "plus" form
(a resampler, Alayrac et al. 2022), and check the tensors of both."""

import re
from collections.abc import Mapping
from itertools import count, takewhile

from torch import Tensor
from torch import cat as concatenated
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

Shapes = Mapping[str, tuple[int, ...]]
MAX_TOKENS = 64
# The resampler's heads have this many channels.
_HEAD = 64
# torch's default, which both forms were trained with.
_EPSILON = 1e-5
_MAX_DEPTH = 64
_RESAMPLED = re.compile(r"latents|(proj_in|proj_out|norm_out)\.(weight|bias)|layers\.\d{1,2}\.[01]\..*")


class OtherForm(ValueError):
    """Report tensors of a form that is not read."""


def is_resampler(names: Mapping[str, object]) -> bool:
    """Return whether the tensors, or their shapes, by name are those of a resampler."""
    return "latents" in names


def checked_width(shapes: Shapes, text_width: int) -> int:
    """Return the width of the encoding that the tensors take; they make tokens of `text_width` values. Raises OtherForm
    for other tensors, ValueError for other shapes; the message names the tensor."""
    if is_resampler(shapes):
        if others := sorted(name for name in shapes if not _RESAMPLED.fullmatch(name)):
            raise OtherForm(f"{others[0][:80]!r} is of a form that is not read")
        wanted, token_count, width = _resampler_shapes(shapes, text_width)
    elif shapes.keys() == {"proj.weight", "proj.bias", "norm.weight", "norm.bias"}:
        wanted, token_count, width = _linear_shapes(shapes, text_width)
    else:
        names = ", ".join(sorted(shapes)[:3])[:160] or "none"
        raise OtherForm(f"the linear and the plus form are read, got tensors {names}")
    for name in sorted(shapes.keys() | wanted):
        if shapes.get(name) != wanted.get(name):
            raise ValueError(f"{name[:80]} must be {wanted.get(name)}, got {shapes.get(name)}")
    if not 1 <= token_count <= MAX_TOKENS:
        raise ValueError(f"must make 1 to {MAX_TOKENS} tokens of {text_width} values")
    return width


def _linear_shapes(shapes: Shapes, text_width: int) -> tuple[Shapes, int, int]:
    """Return the shapes that fit the first tensor's, the number of tokens, and the width of the encoding."""
    outputs, width = _sized(shapes, "proj.weight", 2)
    token_count = outputs // text_width
    wanted = {
        "proj.weight": (token_count * text_width, width),
        "proj.bias": (token_count * text_width,),
        "norm.weight": (text_width,),
        "norm.bias": (text_width,),
    }
    return wanted, token_count, width


def _resampler_shapes(shapes: Shapes, text_width: int) -> tuple[Shapes, int, int]:
    _, token_count, hidden = _sized(shapes, "latents", 3)
    width = _sized(shapes, "proj_in.weight", 2)[1]
    inner = _sized(shapes, "layers.0.0.to_q.weight", 2)[0]
    wide = _sized(shapes, "layers.0.1.1.weight", 2)[0]
    if not inner or inner % _HEAD:
        raise ValueError(f"layers.0.0.to_q.weight must have a multiple of {_HEAD} rows, got {inner}")
    wanted: dict[str, tuple[int, ...]] = {
        "latents": (1, token_count, hidden),
        "proj_in.weight": (hidden, width),
        "proj_in.bias": (hidden,),
        "proj_out.weight": (text_width, hidden),
        "proj_out.bias": (text_width,),
        "norm_out.weight": (text_width,),
        "norm_out.bias": (text_width,),
    }
    for number in range(_depth(shapes)):
        attention, forward = f"layers.{number}.0", f"layers.{number}.1"
        for norm in (f"{attention}.norm1", f"{attention}.norm2", f"{forward}.0"):
            wanted |= {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,)}
        wanted |= {
            f"{attention}.to_q.weight": (inner, hidden),
            f"{attention}.to_kv.weight": (2 * inner, hidden),
            f"{attention}.to_out.weight": (hidden, inner),
            f"{forward}.1.weight": (wide, hidden),
            f"{forward}.3.weight": (hidden, wide),
        }
    return wanted, token_count, width


def _sized(shapes: Shapes, name: str, rank: int) -> tuple[int, ...]:
    shape = shapes.get(name, ())
    if len(shape) != rank:
        raise ValueError(f"{name} must have {rank} dimensions, got {len(shape) or 'no tensor'}")
    return shape


def _depth(names: Mapping[str, object]) -> int:
    there = takewhile(lambda number: f"layers.{number}.0.to_q.weight" in names, count())
    return min(sum(1 for _ in there), _MAX_DEPTH)


def image_tokens(parts: Mapping[str, Tensor], encoded: Tensor) -> Tensor:
    """Return the tokens (rows, tokens, width) of encodings: embeddings (rows, width) for the linear form, states
    (rows, patches, width) for a resampler."""
    if is_resampler(parts):
        return _resampled(parts, encoded)
    width = parts["norm.weight"].shape[0]
    tokens = linear(encoded, parts["proj.weight"], parts["proj.bias"]).reshape(len(encoded), -1, width)
    return _normed(parts, "norm", tokens)


def _resampled(parts: Mapping[str, Tensor], states: Tensor) -> Tensor:
    told = linear(states, parts["proj_in.weight"], parts["proj_in.bias"])
    latents = parts["latents"].expand(len(states), -1, -1)
    for number in range(_depth(parts)):
        attention, forward = f"layers.{number}.0", f"layers.{number}.1"
        asking = _normed(parts, f"{attention}.norm2", latents)
        read = concatenated([_normed(parts, f"{attention}.norm1", told), asking], dim=1)
        key, value = linear(read, parts[f"{attention}.to_kv.weight"]).chunk(2, dim=-1)
        query = linear(asking, parts[f"{attention}.to_q.weight"])
        mixed = scaled_dot_product_attention(_by_head(query), _by_head(key), _by_head(value))
        mixed = mixed.transpose(1, 2).flatten(2)
        latents = latents + linear(mixed, parts[f"{attention}.to_out.weight"])
        wide = gelu(linear(_normed(parts, f"{forward}.0", latents), parts[f"{forward}.1.weight"]))
        latents = latents + linear(wide, parts[f"{forward}.3.weight"])
    return _normed(parts, "norm_out", linear(latents, parts["proj_out.weight"], parts["proj_out.bias"]))


def _by_head(part: Tensor) -> Tensor:
    rows, tokens, _ = part.shape
    return part.reshape(rows, tokens, -1, _HEAD).transpose(1, 2)


def _normed(parts: Mapping[str, Tensor], name: str, values: Tensor) -> Tensor:
    weight = parts[f"{name}.weight"]
    return layer_norm(values, weight.shape, weight, parts[f"{name}.bias"], _EPSILON)
