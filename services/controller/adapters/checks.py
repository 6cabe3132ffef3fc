"""What may be said of an upload, judged before a byte of it is taken."""

from pentimento.domain.adapters import ADAPTED_FAMILIES, ADAPTER_NAME_RULE, LoraUpload, is_adapter_name, is_digest
from pentimento.domain.errors import InvalidArgument

MAX_TEXT_LENGTH = 256


def check_upload(upload: LoraUpload, max_bytes: int) -> None:
    """Raise InvalidArgument that names the field and its limit."""
    if not is_adapter_name(upload.name):
        raise InvalidArgument.of("upload.name", f"{ADAPTER_NAME_RULE}, got {upload.name[:80]!r}")
    if upload.family not in ADAPTED_FAMILIES:
        limit = f"must be one of {', '.join(ADAPTED_FAMILIES)}"
        raise InvalidArgument.of("upload.family", f"{limit}, got {upload.family[:80]!r}")
    if not (1 <= len(upload.licence) <= MAX_TEXT_LENGTH and upload.licence.isprintable()):
        limit = f"must be 1 to {MAX_TEXT_LENGTH} printable characters"
        raise InvalidArgument.of("upload.licence", f"{limit}, got {len(upload.licence)}")
    for field in ("digest", "base_digest"):
        digest = getattr(upload, field)
        if not (is_digest(digest) or (field == "base_digest" and not digest)):
            raise InvalidArgument.of(f"upload.{field}", f"must be sha256:<64 hex digits>, got {digest[:80]!r}")
    if not 1 <= upload.size_bytes <= max_bytes:
        raise InvalidArgument.of("upload.size_bytes", f"must be between 1 and {max_bytes}, got {upload.size_bytes}")
    if not 0.0 <= upload.latest_start_fraction <= 1.0:
        got = upload.latest_start_fraction
        raise InvalidArgument.of("upload.latest_start_fraction", f"must be between 0 and 1, got {got}")
