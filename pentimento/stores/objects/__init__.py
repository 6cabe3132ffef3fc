"""Store opaque bytes under opaque keys: `open_objects(url)` gives a filesystem or an S3 store behind one interface."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pentimento.domain.errors import InvalidArgument
from pentimento.stores.objects.store import CurrentSigner, ObjectStore

__all__ = ["ObjectStore", "open_objects"]


def open_objects(url: str, signer: CurrentSigner | None = None, *, read_only: bool = False) -> ObjectStore:
    """Return the store at `file:///directory` or `s3://bucket/prefix`; raises InvalidArgument for any other url.
    `signer` signs the addresses of files; S3 signs its own. With `read_only` nothing is created or swept.

    Options of S3 are the query: `endpoint`, `region`, `create_bucket=true`, `part_mib`, and `addresses=edge`: the HTTP
    edge serves the objects, for a store that clients do not reach. Credentials come from boto3's own chain
    (environment, files, instance role).
    """
    try:
        return _open_objects(url, signer, read_only)
    except ValueError as error:
        # The parsers of urls, paths and endpoints raise no other error.
        raise InvalidArgument.of("objects_url", f"must be one that can be opened, got {url!r}: {error}") from None


def _open_objects(url: str, signer: CurrentSigner | None, read_only: bool) -> ObjectStore:
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path and not (parts.netloc or parts.query or parts.fragment):
        from pentimento.stores.objects.filesystem import FilesystemObjectStore

        return FilesystemObjectStore(Path(unquote(parts.path)), signer, read_only=read_only)
    if parts.scheme == "s3" and parts.netloc and not parts.fragment:
        from pentimento.stores.objects.s3 import S3ObjectStore

        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        return S3ObjectStore.from_options(parts.netloc, parts.path.strip("/"), options, signer)
    raise InvalidArgument.of("objects_url", f"must be file:///directory or s3://bucket/prefix, got {url!r}")
