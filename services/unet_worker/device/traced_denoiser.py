"""A forward pass that tells when it ran."""

from torch import Tensor

from pentimento.diffusion.engine import Denoiser
from pentimento.diffusion.families.model import BatchKey, DenoiserEncoding, DenoiserInput
from pentimento.telemetry.spans import SpanLog


class TracedDenoiser:
    """See `engine.Denoiser`. On a GPU its spans are those of the launches."""

    def __init__(self, denoiser: Denoiser, spans: SpanLog) -> None:
        self._denoiser = denoiser
        self._spans = spans

    def padded(self, key: BatchKey, request_count: int) -> int:
        """Return how many requests are computed for a batch of that many."""
        return self._denoiser.padded(key, request_count)

    def predict(self, inputs: DenoiserInput) -> Tensor:
        """Return the prediction, shaped as the latents."""
        with self._spans.span("whole", len(inputs.latents)):
            return self._denoiser.predict(inputs)

    def encode(self, inputs: DenoiserInput) -> DenoiserEncoding:
        """Return the pass's first half."""
        with self._spans.span("encode", len(inputs.latents)):
            return self._denoiser.encode(inputs)

    def advance(self, inputs: DenoiserInput, encoding: DenoiserEncoding, blocks_done: int) -> DenoiserEncoding:
        """Return the encoding once so many of a transformer's blocks have run."""
        with self._spans.span("advance", len(inputs.latents)):
            return self._denoiser.advance(inputs, encoding, blocks_done)

    def decode(self, inputs: DenoiserInput, encoding: DenoiserEncoding) -> Tensor:
        """Return the prediction from an encoding of the same rows and their residuals."""
        with self._spans.span("decode", len(inputs.latents)):
            return self._denoiser.decode(inputs, encoding)

    def release_memory(self) -> None:
        """Give up what is kept on the device for later passes."""
        self._denoiser.release_memory()
