"""Signatures of entries of a registry. Mirrors pentimento.api.models.v1.EntrySignature."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EntrySignature:
    """Hold the ed25519 signature of an entry (`value`, base64), the id of its key, and the wall clock's milliseconds at
    which it was made: of two signed entries of one name the later one counts."""

    key_id: str
    signed_at_ms: int
    value: str
