"""Replace the forward functions of layers for one pass."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]
Layer = TypeVar("Layer", bound=nn.Module)


@contextmanager
def replaced(layers: Iterable[Layer], forward: Callable[[Layer, Forward, Tensor], Tensor]) -> Iterator[None]:
    """Call `forward` with the layer, its previous forward function and its inputs while the context is open. Bypasses
    the modules' own bookkeeping, which takes longer than a small layer's arithmetic."""
    own = [(layer, layer.__dict__.get("forward")) for layer in layers]
    try:
        for layer, _ in own:
            layer.__dict__["forward"] = partial(forward, layer, layer.forward)
        yield
    finally:
        for layer, before in own:
            if before is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = before
