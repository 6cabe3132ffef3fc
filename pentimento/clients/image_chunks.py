"""Join images that arrive in parts."""

from collections import defaultdict
from dataclasses import replace

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.domain.errors import Internal
from pentimento.domain.image_request import Completed, GenerateEvent
from pentimento.wire.codec import converter

# gRPC's default limit.
DEFAULT_MESSAGE_BYTES = 4 << 20


class ImageJoiner:
    """Join the images of one stream."""

    def __init__(self) -> None:
        self._chunks: defaultdict[int, list[bytes]] = defaultdict(list)

    def event(self, message: pb.GenerateResponse | pb.ReplayResponse | pb.AttachResponse) -> GenerateEvent | None:
        """Return the event of a message; None for a chunk. Raises Internal IMAGE_INCOMPLETE when chunks are missing."""
        if message.WhichOneof("event") == "image_chunk":
            self._chunks[message.image_chunk.image_index].append(message.image_chunk.data)
            return None
        event: GenerateEvent = converter(GenerateEvent, type(message)).decode(message)
        if not isinstance(event, Completed) or not message.completed.image_size_bytes:
            return event
        image, size_bytes = b"".join(self._chunks.pop(event.image_index, ())), message.completed.image_size_bytes
        if len(image) != size_bytes:
            raise Internal("IMAGE_INCOMPLETE", f"{len(image)} of the {size_bytes} bytes of an image came")
        return replace(event, image=image)
