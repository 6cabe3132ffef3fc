"""Objects in any S3-compatible store, through boto3. A PUT is atomic there: nothing partial is ever readable.

The last corrupt ones are kept under `quarantine/`, for whoever looks into them; no key has such a name.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing, StoreFull, StoreUnavailable
from pentimento.stores.objects.store import (
    aside_name,
    beyond_bounds,
    broken_references,
    check_key,
    is_corrupt,
    refer_to,
    verify,
)

_PAGE_COUNT = 1000
_QUARANTINE = "quarantine/"
_OPTIONS = frozenset({"endpoint", "region", "create_bucket"})
_MISSING = frozenset({"NoSuchKey", "404"})
_FULL = frozenset({"QuotaExceeded", "InsufficientStorage", "EntityTooLarge", "XMinioStorageFull", "507"})
# Retries cover a hiccup, not an outage: whoever waits for an object can do without it.
_CONFIG = Config(
    connect_timeout=2,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 3},
    # Checksums in trailers are Amazon's own; the digest in every reference covers the way there and back.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)


class S3ObjectStore:
    """Objects in one bucket, under `<prefix>/`. Credentials come from boto3's own chain."""

    backend = "s3"

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    @classmethod
    def from_options(cls, bucket: str, prefix: str, options: Mapping[str, str]) -> "S3ObjectStore":
        """Build a store from the query of an `s3:` url. Raises StoreUnavailable only where it is asked to create the
        bucket."""
        if unknown := set(options) - _OPTIONS:
            raise InvalidArgument.of("objects_url", f"s3 urls take {sorted(_OPTIONS)}, got {sorted(unknown)}")
        region = options.get("region", "us-east-1")
        client = boto3.client("s3", endpoint_url=options.get("endpoint"), region_name=region, config=_CONFIG)
        store = cls(client, bucket, prefix)
        if options.get("create_bucket") == "true":
            store._create_bucket()
        return store

    def put(self, key: str, data: bytes, *, durable: bool = True) -> ObjectReference:
        """Upload the object and return its reference."""
        reference = refer_to(check_key(key), data)
        with _typed_errors(key):
            self._client.put_object(
                Bucket=self._bucket, Key=self._prefix + key, Body=data, Metadata={"digest": reference.digest}
            )
        return reference

    def get(self, reference: ObjectReference) -> bytes:
        """Return the bytes, checked. Raises ObjectMissing, ObjectCorrupt."""
        key = check_key(reference.key)
        with _typed_errors(key):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
            with closing(answer["Body"]) as body:
                if answer["ContentLength"] != reference.size_bytes:
                    found = answer["ContentLength"]
                    raise ObjectCorrupt(key, f"expected {reference.size_bytes} bytes, found {found}")
                data = body.read()
        return verify(reference, data)

    def set_aside(self, reference: ObjectReference) -> bool:
        """Copy a corrupt object to the quarantine, delete it, and return whether it was corrupt."""
        if not is_corrupt(self, reference):
            return False
        key = reference.key
        with _typed_errors(key):
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
        with _typed_errors(check_key(key)):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """Yield every key that starts with `prefix`, in no order."""
        with _typed_errors(prefix):
            for key, _ in self._listed(prefix):
                if not key.startswith(_QUARANTINE):
                    yield key

    def free_bytes(self) -> int | None:
        """Return None: a bucket does not say what room it has."""
        return None

    def check_integrity(self, references: Iterable[ObjectReference] = ()) -> list[str]:
        """Return a sentence for each reference that is missing or corrupt."""
        return list(broken_references(self, references))

    def _listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Names without the store's own prefix, and sizes."""
        pages = self._client.get_paginator("list_objects_v2")
        for page in pages.paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix, PaginationConfig={"PageSize": _PAGE_COUNT}
        ):
            for found in page.get("Contents", ()):
                yield found["Key"].removeprefix(self._prefix), found["Size"]

    def _create_bucket(self) -> None:
        try:
            self._client.create_bucket(Bucket=self._bucket)
        except self._client.exceptions.BucketAlreadyOwnedByYou:
            pass
        except self._client.exceptions.BucketAlreadyExists:
            pass
        except (BotoCoreError, ClientError) as error:
            raise StoreUnavailable("object store", type(error).__name__) from error


@contextmanager
def _typed_errors(key: str) -> Iterator[None]:
    """boto3's errors as ours."""
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            raise ObjectMissing(key) from error
        # Bucket, key and endpoint are told by the cause alone.
        words = f"{type(error).__name__} ({code})"
        if code in _FULL:
            raise StoreFull("object store", words) from error
        raise StoreUnavailable("object store", words) from error
    except BotoCoreError as error:
        raise StoreUnavailable("object store", type(error).__name__) from error
