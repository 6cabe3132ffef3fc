"""Read the files below an address of S3, such as a model that others uploaded. Nothing is changed there.

prefix = S3Prefix("s3://bucket/models/sdxl?endpoint=https://minio.example:9000")
prefix.files()   # {"unet/config.json": ListedFile(1680, '"9b2…"'), …}
"""

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.stores.objects.s3 import listed, open_client, read_range, typed_errors

_OPTIONS = frozenset({"endpoint", "region"})


@dataclass(frozen=True)
class ListedFile:
    """Describe a file as S3 lists it: its size, and a tag that changes with its bytes."""

    size_bytes: int
    tag: str


class S3Prefix:
    """Read the objects below `s3://bucket/path`, by their rest of the path. Credentials come from boto3's own chain."""

    def __init__(self, url: str) -> None:
        """Open the address. Raises InvalidArgument for another url."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.scheme != "s3" or not parts.netloc or parts.fragment or set(options) - _OPTIONS:
            limit = f"must be s3://bucket/path, with ?{' and '.join(sorted(_OPTIONS))} at most"
            raise InvalidArgument.of("source", f"{limit}, got {url[:200]!r}")
        self.name = f"s3://{parts.netloc}{parts.path}"
        self._bucket = parts.netloc
        path = parts.path.strip("/")
        self._prefix = f"{path}/" if path else ""
        self._client = open_client(options, "source")

    def files(self) -> dict[str, ListedFile]:
        """Return the files below the address, by path. Raises StoreUnavailable."""
        with typed_errors(self.name):
            return {
                name.removeprefix(self._prefix): ListedFile(found["Size"], found["ETag"])
                for name, found in listed(self._client, self._bucket, self._prefix)
            }

    def read_into(self, reference: ObjectReference, offset: int, buffer: bytearray | memoryview) -> None:
        """Read a range of the file at the path that is the reference's key. Raises ObjectMissing, ObjectCorrupt for a
        file of another size, StoreUnavailable."""
        place = {"Bucket": self._bucket, "Key": self._prefix + reference.key}
        read_range(self._client, place, reference, offset, buffer)
