"""Keep a cache to one encoder: vectors of two encoders are not comparable, however similar they look."""

import logging
import threading

from pentimento.domain.embedding import Embedding
from pentimento.domain.errors import InvalidArgument
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.vectors import VectorIndex
from pentimento.stores.vectors.unit_vectors import check_vector

logger = logging.getLogger(__name__)

MAX_DIMENSION_COUNT = 8192


class EncoderGuard:
    """The encoder that the ledger is bound to (by the first commit), and the index made ready for its vectors."""

    def __init__(self, ledger: CacheLedger, index: VectorIndex) -> None:
        self._ledger = ledger
        self._index = index
        self._binding: EncoderBinding | None = None
        self._prepared = False
        self._lock = threading.Lock()
        # The encoder of the last log line: a caller with another embedder sends no other.
        self._told_of = ""

    @property
    def bound(self) -> bool:
        """Return whether there can be anything to find."""
        return self._binding is not None

    @property
    def encoder_digest(self) -> str | None:
        """Return the encoder that the cache is bound to; None while it is unbound."""
        return self._binding.encoder_digest if self._binding is not None else None

    @property
    def prepared(self) -> bool:
        """Return whether the index is ready to be searched."""
        return self._prepared

    def open(self) -> None:
        """Read the binding, and make the index ready. Blocks; raises StoreUnavailable, SchemaMismatch."""
        self._binding = self._binding or self._ledger.binding()
        self.prepare_index()

    def prepare_index(self) -> None:
        """Make the index ready if it is not yet, and there is a binding. Blocks; raises like `open`."""
        with self._lock:
            if self._binding is not None and not self._prepared:
                self._index.prepare(self._binding.dimension_count)
                self._prepared = True

    def prepare_again(self) -> None:
        """Make the index ready again: a server may have lost its collection. Blocks; raises like `open`."""
        if self._binding is not None and self._prepared:
            # Without the lock: commits do not wait for it.
            self._index.prepare(self._binding.dimension_count)
        self.prepare_index()

    def check(self, embedding: Embedding, field: str) -> None:
        """Raises InvalidArgument unless it is a unit vector of the cache's encoder, or of any while there is none."""
        if not embedding.encoder_digest:
            raise InvalidArgument.of("encoder_digest", "must not be empty")
        if not 1 <= embedding.dimension_count <= MAX_DIMENSION_COUNT:
            found = embedding.dimension_count
            raise InvalidArgument.of(
                f"{field}.dimension_count", f"must be between 1 and {MAX_DIMENSION_COUNT}, got {found}"
            )
        if self._binding is not None:
            self._tell_of_another(self._binding, embedding.encoder_digest)
            _require_encoder(self._binding, embedding, field)
        check_vector(f"{field}.values", embedding.values, embedding.dimension_count)

    def _tell_of_another(self, binding: EncoderBinding, encoder_digest: str) -> None:
        """Log one line per encoder, not per call: callers continue without the cache, and the log says why."""
        if encoder_digest not in (binding.encoder_digest, self._told_of):
            self._told_of = encoder_digest
            told = (binding.encoder_digest, encoder_digest)
            logger.warning("rejected: the cache holds vectors of encoder %s, the request has those of %.80s", *told)

    def check_encoder(self, encoder_digest: str) -> None:
        """Check that the cache holds that encoder's vectors. Raises InvalidArgument."""
        if encoder_digest != self.encoder_digest:
            raise InvalidArgument.of("encoder_digest", "must be that of the cache's encoder")

    def check_entry(self, text: Embedding, image: Embedding | None) -> EncoderBinding:
        """Return the encoder of an entry's vectors; the first commit binds an unbound cache to it. Raises
        InvalidArgument as `check`, and if text and image are of two encoders."""
        self.check(text, "text_embedding")
        encoder = EncoderBinding(text.encoder_digest, text.dimension_count)
        if image is not None:
            self.check(image, "image_embedding")
            _require_encoder(encoder, image, "image_embedding")
        return encoder

    def note_bound(self, encoder: EncoderBinding) -> None:
        """Changes state: know the encoder that a commit was of."""
        self._binding = self._binding or encoder


def _require_encoder(binding: EncoderBinding, embedding: Embedding, field: str) -> None:
    if embedding.encoder_digest != binding.encoder_digest:
        raise InvalidArgument.of(
            "encoder_digest", f"must be {binding.encoder_digest}, the encoder of the cache; another needs its own cache"
        )
    if embedding.dimension_count != binding.dimension_count:
        found = embedding.dimension_count
        raise InvalidArgument.of(f"{field}.dimension_count", f"must be {binding.dimension_count}, got {found}")
