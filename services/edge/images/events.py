"""Events of streamed images in OpenAI's format (server-sent events). Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pentimento.domain.errors import PentimentoError
from pentimento.domain.image_request import Completed, GenerateEvent, ImageFailed, Progress
from services.edge.http.documents import Base64, document_bytes
from services.edge.http.errors import error_document
from services.edge.images.answering import failure_document, image_document, quality_of, quality_word, size_of, usage_of
from services.edge.images.image_call import API_NAMES, ImageCall

HEARTBEAT = b": still generating\n\n"


def sse(name: str, document: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), document_bytes(document, ensure_ascii=True))


def error_event(error: PentimentoError) -> bytes:
    """Return the event that ends a stream before its image is finished."""
    return sse("error", error_document(error, API_NAMES))


@dataclass
class ImageEvents:
    """Encode the events of one call. `kind` is image_generation or image_edit, `created_s` a Unix time."""

    kind: str
    asked: ImageCall
    created_s: int
    completed_count: int = field(default=0, init=False)
    _shown: Counter[int] = field(default_factory=Counter, init=False)

    def of(self, event: GenerateEvent) -> bytes | None:
        """Return the bytes that the client receives for an event; None for none."""
        if isinstance(event, Completed):
            self.completed_count += 1
            return self._completed(event)
        if isinstance(event, ImageFailed):
            name = f"{self.kind}.failed"
            return sse(name, {"type": name, **failure_document(event)})
        if isinstance(event, Progress) and event.preview:
            return self._partial(event)
        return None

    def _partial(self, event: Progress) -> bytes | None:
        name, number = f"{self.kind}.partial_image", self._shown[event.image_index]
        if number >= self.asked.partial_images:
            return None
        self._shown[event.image_index] += 1
        document = {
            "type": name,
            "b64_json": Base64(event.preview),
            "partial_image_index": number,
            "image_index": event.image_index,
            "created_at": self.created_s,
            "background": "opaque",
            # Previews are always PNG.
            "output_format": "png",
            "quality": quality_word(event.saved_steps),
            "size": f"{event.width_px}x{event.height_px}",
            "step": event.step,
            "step_count": event.step_count,
        }
        return sse(name, document)

    def _completed(self, completed: Completed) -> bytes:
        name = f"{self.kind}.completed"
        document = {
            "type": name,
            **image_document(completed, self.asked.provenance),
            "created_at": self.created_s,
            "background": "opaque",
            "output_format": completed.format.value,
            "quality": quality_of(completed),
            "size": size_of(completed),
            "usage": usage_of([completed]),
        }
        return sse(name, document)
