"""Store objects in any S3-compatible store, through boto3. A PUT is atomic there: nothing partial is ever readable.

An object larger than a part is uploaded in parts (multipart upload) by boto3's transfer manager; it is readable only
after all parts are joined. The parts of a failed upload are deleted immediately, those of a dead writer by
`sweep_uploads`: the store keeps them, hidden, until then.

The last corrupt objects are stored under `quarantine/` for inspection; no key has such a name.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.domain.jobs import ResultUrlServer
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing, StoreFull, StoreUnavailable
from pentimento.stores.objects.store import (
    CheckReference,
    CurrentSigner,
    DigestedFile,
    Readable,
    StoreUsage,
    aside_name,
    beyond_bounds,
    broken_references,
    check_key,
    check_range,
    check_size,
    is_corrupt,
    is_key,
    presigned_path,
    refer_to,
    verify,
)
from pentimento.stores.url_options import switch

_PAGE_COUNT = 1000
_QUARANTINE = "quarantine/"
_OPTIONS = frozenset({"endpoint", "region", "create_bucket", "part_mib", "addresses"})
_ADDRESSES = ("store", "edge")
_MEBIBYTE = 2**20
# S3 accepts no smaller parts, except the last one, and no larger ones.
_LEAST_PART_MIB, _MOST_PART_MIB = 5, 5 * 1024
_DEFAULT_PART_MIB = 16
# Parts of an object at a time: one connection is limited by its round trips.
PARALLEL_PARTS = 8
_LONGEST_URL_S = 7 * 24 * 3600
_MISSING = frozenset({"NoSuchKey", "404"})
_OTHER_REGION = "IllegalLocationConstraintException"
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "EntityTooLarge", "XMinioStorageFull", "507"})
# Errors when a proxy or another server answers: a missing field, endless redirects.
_STRANGE = (KeyError, RecursionError)
_NO_STORE = "what answers is no S3 store"
# Retries cover a hiccup, not an outage: every reader of an object can do without it.
_CONFIG = Config(
    connect_timeout=2,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 3},
    # Checksums in trailers are specific to Amazon; the digest in every reference covers both directions.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    # Addresses are signed in their query by the fourth version, in every region.
    signature_version="s3v4",
)


class S3ObjectStore:
    """Store objects in one bucket, under `<prefix>/`. Credentials come from boto3's own chain."""

    backend = "s3"

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str,
        part_bytes: int = _DEFAULT_PART_MIB * _MEBIBYTE,
        signer: CurrentSigner | None = None,
        address_server: ResultUrlServer = ResultUrlServer.STORE,
    ) -> None:
        """Open the store. `signer` signs paths of the edge if the edge serves addresses; None if there is no key for
        them."""
        self._signer = signer
        self.address_server = address_server
        self._client = client
        self._bucket = bucket
        self._part_bytes = part_bytes
        # An object of at most one part goes up whole.
        self._transfer = TransferConfig(
            multipart_threshold=part_bytes + 1,
            multipart_chunksize=part_bytes,
            max_concurrency=PARALLEL_PARTS,
            preferred_transfer_client="classic",
        )
        self._prefix = f"{prefix}/" if prefix else ""

    @classmethod
    def from_options(
        cls, bucket: str, prefix: str, options: Mapping[str, str], signer: CurrentSigner | None = None
    ) -> "S3ObjectStore":
        """Build a store from the query of an `s3:` url. Raises StoreUnavailable only with `create_bucket`."""
        if unknown := set(options) - _OPTIONS:
            raise InvalidArgument.of("objects_url", f"s3 urls take {sorted(_OPTIONS)}, got {sorted(unknown)}")
        creates_bucket = switch("objects_url", options, "create_bucket", default=False)
        client = open_client(options, "objects_url")
        store = cls(client, bucket, prefix, _part_bytes(options), signer, _address_server(options, signer))
        if creates_bucket:
            store._create_bucket()
        return store

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        """Upload the object and return its reference."""
        if len(data) > self._part_bytes:
            return self.put_file(key, BytesIO(data))
        reference = refer_to(check_key(key), data)
        with typed_errors(key):
            put = self._client.put_object(Body=data, Metadata={"digest": reference.digest}, **self._place(key))
            _require_tag(put)
        return reference

    def put_file(self, key: str, file: Readable, check: CheckReference | None = None) -> ObjectReference:
        """Upload the rest of the file, in parts that run in parallel, and return its reference. The parts of a
        failed upload are deleted; if the store is away, a sweep will delete them."""
        digested = DigestedFile(key, file, check)
        with typed_errors(check_key(key)):
            self._client.upload_fileobj(digested, self._bucket, self._prefix + key, Config=self._transfer)
        return digested.reference

    def get(self, reference: ObjectReference) -> bytes:
        """Return the bytes, checked. Raises ObjectMissing, ObjectCorrupt."""
        return verify(reference, self._read(reference.key, reference))

    def get_unverified(self, key: str) -> bytes:
        """Return the bytes, unchecked. Raises ObjectMissing."""
        return self._read(key, None)

    def read_into(self, reference: ObjectReference, offset: int, buffer: bytearray | memoryview) -> None:
        """Read a range of the object into the buffer. Raises ObjectMissing, ObjectCorrupt."""
        read_range(self._client, self._place(check_key(reference.key)), reference, offset, buffer)

    def presign(self, reference: ObjectReference, media_type: str, expires_at: int) -> str:
        """Return an address of the store itself, signed in its query; it expires early if the credentials do. If the
        edge serves the objects, return a path of the edge."""
        place = self._place(check_key(reference.key))
        if self.address_server is not ResultUrlServer.STORE:
            return presigned_path(self._signer, reference, media_type, expires_at)
        # The signature also covers the response headers that a browser receives.
        shown = {"ResponseContentType": media_type, "ResponseContentDisposition": "inline"}
        # S3 takes 1 second to 7 days.
        lifetime_s = min(max(math.ceil(expires_at - time.time()), 1), _LONGEST_URL_S)
        with typed_errors(reference.key):
            url: str = self._client.generate_presigned_url("get_object", {**place, **shown}, ExpiresIn=lifetime_s)
        return url

    def set_aside(self, reference: ObjectReference) -> bool:
        """Copy a corrupt object to the quarantine, delete it, and return whether it was corrupt."""
        if not is_corrupt(self, reference):
            return False
        key = reference.key
        with typed_errors(key):
            self._client.copy_object(
                Bucket=self._bucket,
                Key=self._prefix + _QUARANTINE + aside_name(key, time.time_ns()),
                CopySource={"Bucket": self._bucket, "Key": self._prefix + key},
            )
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)
            for name in beyond_bounds(dict(self._listed(_QUARANTINE))):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        return True

    def delete(self, key: str) -> None:
        """Delete the object, if there is one."""
        # Some stores report a missing object.
        with suppress(ObjectMissing), typed_errors(check_key(key)):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield every key that starts with `prefix`, in no order."""
        with typed_errors(prefix):
            for key, _ in self._listed(prefix):
                if is_key(key) and not key.startswith(_QUARANTINE):
                    yield key

    def usage(self, prefix: str = "") -> StoreUsage:
        """Return the count and size of the objects under `prefix`, as the store lists them; not the quarantine."""
        with typed_errors(prefix):
            sizes = [size for key, size in self._listed(prefix) if not key.startswith(_QUARANTINE)]
        return StoreUsage(len(sizes), sum(sizes))

    def sweep_uploads(self, unfinished_for_s: float) -> int:
        """Delete the parts of uploads at least `unfinished_for_s` old, by the store's clock, and return the number of
        uploads."""
        with typed_errors(""):
            old = [
                (name, upload_id) for name, upload_id, age_s in self._unfinished_uploads() if age_s >= unfinished_for_s
            ]
            for name, upload_id in old:
                # The writer may have ended it first.
                with suppress(self._client.exceptions.NoSuchUpload):
                    self._abort(name, upload_id)
        return len(old)

    def free_bytes(self) -> int | None:
        """Return None: a bucket does not report its free space."""
        return None

    def check_integrity(self, references: Iterable[ObjectReference] = ()) -> list[str]:
        """Return a sentence for each unfinished upload, and for each reference that is missing or corrupt."""
        with typed_errors(""):
            unfinished = [f"unfinished upload of {name}" for name, _, _ in self._unfinished_uploads()]
        return unfinished + list(broken_references(self, references))

    def _read(self, key: str, expected: ObjectReference | None) -> bytes:
        """Return an object's bytes, of the expected size if there is a reference."""
        with typed_errors(check_key(key)):
            answer = self._client.get_object(**self._place(key))
            with closing(answer["Body"]) as body:
                _require_tag(answer)
                if expected is not None:
                    check_size(expected, answer["ContentLength"])
                data: bytes = body.read()
                return data

    def _place(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _abort(self, name: str, upload_id: str) -> None:
        self._client.abort_multipart_upload(Bucket=self._bucket, Key=name, UploadId=upload_id)

    def _unfinished_uploads(self) -> Iterator[tuple[str, str, float]]:
        """Yield names with the store's own prefix, ids, and ages in seconds by the store's clock."""
        pages = self._client.get_paginator("list_multipart_uploads")
        for page in pages.paginate(
            Bucket=self._bucket, Prefix=self._prefix, PaginationConfig={"PageSize": _PAGE_COUNT}
        ):
            now = _time_of(page)
            for found in page.get("Uploads", ()):
                yield found["Key"], found["UploadId"], (now - found["Initiated"]).total_seconds()

    def _listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield names without the store's own prefix, and sizes."""
        for name, found in listed(self._client, self._bucket, self._prefix + prefix):
            yield name.removeprefix(self._prefix), found["Size"]

    def _create_bucket_in(self, place: Mapping[str, Any]) -> None:
        try:
            self._client.create_bucket(Bucket=self._bucket, **place)
        except ClientError as error:
            # Amazon requires the region except for the first one; other stores have no regions, or their own.
            if place or error.response.get("Error", {}).get("Code") != _OTHER_REGION:
                raise
            self._create_bucket_in({"CreateBucketConfiguration": {"LocationConstraint": self._client.meta.region_name}})

    def _create_bucket(self) -> None:
        there = (self._client.exceptions.BucketAlreadyOwnedByYou, self._client.exceptions.BucketAlreadyExists)
        with typed_errors(""), suppress(*there):
            self._create_bucket_in({})


def open_client(options: Mapping[str, str], field: str) -> Any:
    """Return a client of S3 for the `endpoint` and `region` of the options. Raises InvalidArgument that names the
    field."""
    region = options.get("region", "us-east-1")
    try:
        return boto3.client("s3", endpoint_url=options.get("endpoint"), region_name=region, config=_CONFIG)
    except (BotoCoreError, ValueError) as error:
        raise InvalidArgument.of(field, f"S3 cannot be reached with this configuration: {error}") from None


def listed(client: Any, bucket: str, prefix: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names of a bucket's objects that start with `prefix`, and what S3 lists of each."""
    pages = client.get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": _PAGE_COUNT}):
        for found in page.get("Contents", ()):
            yield found["Key"], found


def read_range(
    client: Any,
    place: Mapping[str, str],
    reference: ObjectReference,
    offset: int,
    buffer: bytearray | memoryview,
) -> None:
    """Read a range of the object at `place` into the buffer. Raises ObjectMissing, ObjectCorrupt, StoreUnavailable."""
    check_range(reference, offset, len(buffer))
    if not buffer:
        return
    with typed_errors(reference.key):
        answer = client.get_object(Range=f"bytes={offset}-{offset + len(buffer) - 1}", **place)
        with closing(answer["Body"]) as body:
            _require_tag(answer)
            # "bytes 0-99/1000"
            check_size(reference, int(answer["ContentRange"].rpartition("/")[2]))
            filled = 0
            while count := body.readinto(memoryview(buffer)[filled:]):
                filled += count
    if filled != len(buffer):
        raise ObjectCorrupt(reference.key, f"expected {len(buffer)} bytes of a range, found {filled}")


def _address_server(options: Mapping[str, str], signer: CurrentSigner | None) -> ResultUrlServer:
    addresses = options.get("addresses", "store")
    if addresses not in _ADDRESSES:
        raise InvalidArgument.of("objects_url", f"addresses must be {' or '.join(_ADDRESSES)}, got {addresses!r}")
    if addresses == "store":
        return ResultUrlServer.STORE
    return ResultUrlServer.NONE if signer is None else ResultUrlServer.EDGE


def _part_bytes(options: Mapping[str, str]) -> int:
    found = options.get("part_mib", str(_DEFAULT_PART_MIB))
    if not found.isdecimal() or not _LEAST_PART_MIB <= int(found) <= _MOST_PART_MIB:
        limits = f"{_LEAST_PART_MIB} to {_MOST_PART_MIB}"
        raise InvalidArgument.of("objects_url", f"part_mib must be {limits}, got {found!r}")
    return int(found) * _MEBIBYTE


def _require_tag(answer: Mapping[str, Any]) -> None:
    """Check that an S3 store answered: it reports the tag of each object that it holds. A page of a proxy in front of
    it would pass for a stored object, or for a corrupt one to be deleted. Raises StoreUnavailable."""
    if "ETag" not in answer:
        raise StoreUnavailable("object store", _NO_STORE)


def _time_of(answer: Mapping[str, Any]) -> datetime:
    """Return the time of the store's answer, by its clock; by the local clock if the answer has no date."""
    told = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    return parsedate_to_datetime(told) if told else datetime.now(UTC)


@contextmanager
def typed_errors(key: str) -> Iterator[None]:
    """Raise boto3's errors as ours."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise ObjectMissing(key) from error
        # Only the cause names bucket, key and endpoint.
        words = f"{type(error).__name__} ({code})"
        if code in _FULL:
            raise StoreFull("object store", words) from error
        raise StoreUnavailable("object store", words) from error
    except BotoCoreError as error:
        raise StoreUnavailable("object store", type(error).__name__) from error
    except _STRANGE as error:
        raise StoreUnavailable("object store", _NO_STORE) from error
