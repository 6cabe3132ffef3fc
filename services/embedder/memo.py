"""Remember the newest embeddings, by a digest of their inputs."""

import hashlib
from collections import OrderedDict


class EmbeddingMemo:
    """The `capacity` entries used last; 0 keeps none. Belongs to one thread.

    A key is a digest over encoder, partition, kind and content, so neither prompts nor images are kept, and the time of
    an answer reveals no prompt of another tenant.
    """

    def __init__(self, capacity: int, encoder_digest: str) -> None:
        self._capacity = capacity
        self._encoder = encoder_digest.encode()
        self._entries: OrderedDict[bytes, bytes] = OrderedDict()
        self.hit_count = 0
        self.miss_count = 0

    def key(self, partition: str, kind: str, content: bytes) -> bytes:
        digest = hashlib.sha256(self._encoder)
        for part in (partition.encode(), kind.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update(content)
        return digest.digest()

    def get(self, key: bytes) -> bytes | None:
        """Return the vector, which becomes the youngest entry (changes state)."""
        vector = self._entries.get(key)
        if vector is None:
            self.miss_count += 1
            return None
        self._entries.move_to_end(key)
        self.hit_count += 1
        return vector

    def put(self, key: bytes, vector: bytes) -> None:
        """Changes state: drops the oldest entry above the capacity."""
        self._entries[key] = vector
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
