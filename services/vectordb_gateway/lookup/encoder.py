"""Keep each space of a cache to one encoder: vectors of two are not comparable, however similar they look."""

import logging
import threading
import time
from collections.abc import Callable

from pentimento.domain.embedding import Embedding, PromptEmbedding, Space
from pentimento.domain.errors import InvalidArgument
from pentimento.stores.ledger.cache.grants import must_be_encoder
from pentimento.stores.ledger.cache.ledger import CacheLedger
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.vectors import VectorIndex
from pentimento.stores.vectors.unit_vectors import check_vector

logger = logging.getLogger(__name__)

MAX_DIMENSION_COUNT = 8192
# The fields of a commit's vectors.
ENTRY_FIELDS = {Space.TEXT: "text_embedding", Space.IMAGE: "image_embedding"}
# Seconds without a vector of a space's encoder, after which a commit of another one replaces it.
REPLACED_AFTER_S = 600.0


class EncoderGuard:
    """The encoder of each space that the ledger is bound to (by its first vector), and the index made ready for
    them. Another encoder replaces an unused one."""

    def __init__(self, ledger: CacheLedger, index: VectorIndex, now: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._index = index
        self._bindings: dict[Space, EncoderBinding] = {}
        # The dimensions of texts and images that the index is ready for.
        self._prepared: tuple[int, int] | None = None
        self._lock = threading.Lock()
        # The encoder of each space's last log line: a caller with another embedder sends no other.
        self._told_of: dict[Space, str] = {}
        self._now = now
        self._used_at = dict.fromkeys(Space, now())

    @property
    def bound(self) -> bool:
        """Return whether there can be anything to find."""
        return Space.TEXT in self._bindings

    def digest(self, space: Space = Space.TEXT) -> str | None:
        """Return the encoder of a space, that of texts for images until these have one; None while the cache is
        unbound."""
        bound = self._bindings.get(space) or self._bindings.get(Space.TEXT)
        return bound.encoder_digest if bound is not None else None

    @property
    def prepared(self) -> bool:
        """Return whether the index is ready to be searched."""
        return self._prepared is not None

    def open(self) -> None:
        """Read the bindings, and make the index ready. Blocks; raises StoreUnavailable, SchemaMismatch."""
        self._bindings = {**self._bindings, **self._ledger.bindings()}
        self.prepare_index()

    def prepare_index(self) -> None:
        """Make the index ready for the bound encoders if it is not yet. Blocks; raises like `open`."""
        with self._lock:
            wanted = self._dimensions()
            if wanted is not None and wanted != self._prepared:
                self._index.prepare(*wanted)
                self._prepared = wanted

    def prepare_again(self) -> None:
        """Make the index ready again: a server may have lost its collection. Blocks; raises like `open`."""
        wanted = self._dimensions()
        if wanted is not None and wanted == self._prepared:
            # Without the lock: commits do not wait for it.
            self._index.prepare(*wanted)
        self.prepare_index()

    def check(self, embedding: Embedding, field: str, space: Space = Space.TEXT) -> None:
        """Raises InvalidArgument unless it is a unit vector of the space's encoder, or of any while there is none."""
        _check_description(embedding, field)
        if (bound := self._bindings.get(space)) is not None:
            self._tell_of_another(bound, embedding.encoder_digest)
            _require_encoder(bound, embedding, field)
            self._used_at[space] = self._now()
        check_vector(f"{field}.values", embedding.values, embedding.dimension_count)

    def searched(self, prompt: PromptEmbedding) -> dict[Space, Embedding]:
        """Return a prompt's vector in each space that it can be searched in: texts, and images unless they have another
        encoder than the prompt's vectors. Raises InvalidArgument as `check`."""
        self.check(prompt.text, "text_embedding")
        image, bound = prompt.image or prompt.text, self._bindings.get(Space.IMAGE)
        if prompt.image is not None:
            _check_description(image, "image_query")
        if bound is not None and image.encoder_digest != bound.encoder_digest:
            if prompt.image is not None:
                self._tell_of_another(bound, image.encoder_digest)
            return {Space.TEXT: prompt.text}
        if prompt.image is not None:
            self.check(image, "image_query", Space.IMAGE)
        self._used_at[Space.IMAGE] = self._now()
        return {Space.TEXT: prompt.text, Space.IMAGE: image}

    def _tell_of_another(self, bound: EncoderBinding, encoder_digest: str) -> None:
        """Log one line per encoder, not per call: callers continue without the cache, and the log says why."""
        if encoder_digest not in (bound.encoder_digest, self._told_of.get(bound.space)):
            self._told_of[bound.space] = encoder_digest
            told = (bound.space.value, bound.encoder_digest, encoder_digest)
            logger.warning("rejected: the cache holds %s vectors of encoder %s, the request has those of %.80s", *told)

    def check_encoder(self, encoder_digest: str, space: Space) -> None:
        """Check that the space holds that encoder's vectors. Raises InvalidArgument."""
        if encoder_digest != self.digest(space):
            raise InvalidArgument.of("encoder_digest", f"must be that of the cache's encoder of {space.value}s")

    def check_entry(self, text: Embedding, image: Embedding | None) -> tuple[EncoderBinding, ...]:
        """Return the encoder of each of an entry's vectors; the first vector of a space binds it. Raises
        InvalidArgument as `check`, but not for an encoder that replaces the space's."""
        if image is not None and image.encoder_digest == text.encoder_digest:
            _require_encoder(EncoderBinding(text.encoder_digest, text.dimension_count), image, "image_embedding")
        vectors = {Space.TEXT: text} if image is None else {Space.TEXT: text, Space.IMAGE: image}
        found = [EncoderBinding(one.encoder_digest, one.dimension_count, space) for space, one in vectors.items()]
        for encoder, vector in zip(found, vectors.values(), strict=True):
            field = ENTRY_FIELDS[encoder.space]
            if self._replaces(encoder):
                _check_description(vector, field)
                check_vector(f"{field}.values", vector.values, vector.dimension_count)
            else:
                self.check(vector, field, encoder.space)
        return tuple(found)

    def replacing(self, encoders: tuple[EncoderBinding, ...]) -> tuple[EncoderBinding, ...]:
        """Return the encoders that replace those of their space, which were not used for `REPLACED_AFTER_S`."""
        return tuple(one for one in encoders if self._replaces(one))

    def _replaces(self, encoder: EncoderBinding) -> bool:
        bound = self._bindings.get(encoder.space)
        if bound is None or bound.encoder_digest == encoder.encoder_digest:
            return False
        return self._now() - self._used_at[encoder.space] >= REPLACED_AFTER_S

    def note_replaced(self, encoder: EncoderBinding) -> None:
        """Changes state: the space has another encoder from now on."""
        before = self._bindings[encoder.space]
        self._bindings = {**self._bindings, encoder.space: encoder}
        self._used_at[encoder.space] = self._now()
        names = (encoder.space.value, encoder.encoder_digest, before.encoder_digest)
        logger.warning("the cache's %s vectors are of encoder %s from now on; those of %s are dropped", *names)

    def note_bound(self, *encoders: EncoderBinding) -> None:
        """Changes state: know the encoders that a commit was of."""
        self._bindings = {**{one.space: one for one in encoders}, **self._bindings}

    def _dimensions(self) -> tuple[int, int] | None:
        """Return the dimensions of texts and images; those of texts for both until there is an image."""
        text = self._bindings.get(Space.TEXT)
        if text is None:
            return None
        return text.dimension_count, self._bindings.get(Space.IMAGE, text).dimension_count


def _check_description(embedding: Embedding, field: str) -> None:
    if not embedding.encoder_digest:
        raise InvalidArgument.of(f"{field}.encoder_digest", "must not be empty")
    if not 1 <= embedding.dimension_count <= MAX_DIMENSION_COUNT:
        found = embedding.dimension_count
        raise InvalidArgument.of(
            f"{field}.dimension_count", f"must be between 1 and {MAX_DIMENSION_COUNT}, got {found}"
        )


def _require_encoder(bound: EncoderBinding, embedding: Embedding, field: str) -> None:
    if embedding.encoder_digest != bound.encoder_digest:
        raise InvalidArgument.of(f"{field}.encoder_digest", must_be_encoder(bound))
    if embedding.dimension_count != bound.dimension_count:
        found = embedding.dimension_count
        raise InvalidArgument.of(f"{field}.dimension_count", f"must be {bound.dimension_count}, got {found}")
