"""Test the contract of object stores on every store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.store import (
    MAX_ASIDE_COUNT,
    StoreUsage,
    aside_name,
    beyond_bounds,
    digest_of,
    refer_to,
)
from tests.support.refusals import raises

BAD_KEYS = [
    "",
    ".",
    "..",
    "/",
    "/etc/passwd",
    "a/",
    "/a",
    "a//b",
    "../a",
    "a/../b",
    "a/./b",
    "a.b",
    "a\0b",
    "a\nb",
    "a b",
    "%2e%2e",
    "a?b",
    "a\\b",
    "-a",
    "ä",
    "a/b/c/d/e",
    "a" * 101,
    "/".join(["a" * 90] * 3),
]


def test_get_returns_put_bytes(objects: ObjectStore) -> None:
    reference = objects.put("cache/a/1", b"bytes")

    assert objects.get(reference) == b"bytes"
    assert reference.size_bytes == 5
    assert reference.digest == "sha256:" + "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9"


def test_put_of_large_and_empty_objects(objects: ObjectStore) -> None:
    large = bytes(range(256)) * 20_000

    assert objects.get(objects.put("large", large)) == large
    assert objects.get(objects.put("empty", b"", durable=False)) == b""
    assert objects.sweep_uploads(0.0) == 0, "every upload came to its end"
    assert objects.get(objects.put("large", large)) == large


def test_put_file_stores_in_pieces_and_read_into_fills_ranges(objects: ObjectStore) -> None:
    large = bytes(range(256)) * 90_000
    reference = objects.put_file("large", BytesIO(large))

    assert reference == refer_to("large", large)
    assert objects.get(reference) == large
    for start, size in ((0, 3), (len(large) - 5, 5), (70_000, 20_000_000), (9, 0)):
        objects.read_into(reference, start, buffer := bytearray(size))
        assert buffer == large[start : start + size]
    with pytest.raises(ObjectCorrupt):
        objects.read_into(replace(reference, size_bytes=len(large) + 1), 0, bytearray(9))
    with pytest.raises(ObjectMissing):
        objects.read_into(replace(reference, key="none"), 0, bytearray(9))


def test_put_file_leaves_nothing_when_its_file_fails(objects: ObjectStore) -> None:
    class Failing(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 17_000_000:
                raise InvalidArgument.of("digest", "is another")
            return super().read(size)

    with pytest.raises(InvalidArgument):
        objects.put_file("large", Failing(bytes(40_000_000)))

    assert list(objects.keys()) == []
    assert objects.check_integrity() == []


def test_objects_outlive_their_process(objects_url: str) -> None:
    reference = open_objects(objects_url).put("a", b"bytes")

    assert open_objects(objects_url).get(reference) == b"bytes"


def test_put_replaces_object_and_get_refuses_other_references(objects: ObjectStore) -> None:
    first = objects.put("a", b"one")
    second = objects.put("a", b"other")

    assert objects.get(second) == b"other"
    for wrong in (first, replace(second, digest="sha256:" + "0" * 64), replace(second, size_bytes=4)):
        with pytest.raises(ObjectCorrupt):
            objects.get(wrong)


def test_set_aside_removes_corrupt_object_only(objects: ObjectStore) -> None:
    reference = objects.put("results/a", b"bytes")
    assert not objects.set_aside(reference), "it is sound"
    assert objects.get(reference) == b"bytes"
    objects.put("results/a", b"torn!")

    assert objects.set_aside(reference)

    with pytest.raises(ObjectMissing):
        objects.get(reference)
    assert list(objects.keys()) == []
    assert not objects.set_aside(reference)


def test_set_aside_by_two_readers_at_once(tmp_path: Path) -> None:
    """Set aside more objects than are kept, so that each reader deletes objects that the other has listed."""
    objects = open_objects(f"file://{tmp_path}/objects")
    stored = [objects.put(f"k{number}", b"data", durable=False) for number in range(4 * MAX_ASIDE_COUNT)]
    corrupt = [replace(reference, digest=digest_of(b"other")) for reference in stored]

    with ThreadPoolExecutor(2) as readers:
        was_corrupt = list(readers.map(objects.set_aside, corrupt))

    assert all(was_corrupt)
    assert len(list((tmp_path / "objects" / "quarantine").iterdir())) <= MAX_ASIDE_COUNT
    assert list(objects.keys()) == []


def test_beyond_bounds_names_oldest_objects() -> None:
    many = {aside_name("results/a", number): 1 for number in range(70)}
    large = {aside_name("results/a", number): 100 * 2**20 for number in range(5)}
    four_fill_it = {aside_name("results/a", number): 64 * 2**20 for number in range(5)}

    assert sorted(beyond_bounds(many)) == sorted(many)[:6]
    assert sorted(beyond_bounds(large)) == sorted(large)[:3]
    assert beyond_bounds(four_fill_it) == sorted(four_fill_it)[:1]


def test_keys_and_usage_of_prefix(objects: ObjectStore) -> None:
    for key, size in (("cache/x/1", 10), ("cache/x/2", 5), ("cache/y/1", 100), ("results/1", 0)):
        objects.put(key, bytes(size))
    aside = objects.put("cache/x/3", b"sound")
    objects.put("cache/x/3", b"torn!")
    objects.set_aside(aside)

    assert objects.usage("cache/x/") == StoreUsage(2, 15)
    assert objects.usage() == StoreUsage(4, 115)
    assert objects.usage("cache/z/") == StoreUsage(0, 0)
    assert sorted(objects.keys("cache/x/")) == ["cache/x/1", "cache/x/2"]
    assert sorted(objects.keys()) == ["cache/x/1", "cache/x/2", "cache/y/1", "results/1"]


def test_delete_of_object_may_be_repeated(objects: ObjectStore) -> None:
    reference = objects.put("a/b", b"bytes")

    objects.delete("a/b")
    objects.delete("a/b")

    with pytest.raises(ObjectMissing):
        objects.get(reference)


def test_object_key_that_is_a_path_or_worse_is_refused(objects: ObjectStore) -> None:
    taken = [
        (key, name)
        for key in BAD_KEYS
        for name, call in {
            "put": lambda key: objects.put(key, b""),
            "get": lambda key: objects.get(ObjectReference(key, "sha256:" + "0" * 64, 0)),
            "delete": objects.delete,
        }.items()
        if not raises(InvalidArgument, call, key)
    ]

    assert taken == []
    assert list(objects.keys()) == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(max_size=40))
def test_put_of_any_key_lists_it_or_is_refused(objects: ObjectStore, key: str) -> None:
    try:
        objects.put(key, b"x", durable=False)
    except InvalidArgument:
        assert key not in set(objects.keys())
    else:
        assert key in set(objects.keys())
        objects.delete(key)


def test_put_concurrent_of_one_key_leaves_one_object(objects: ObjectStore) -> None:
    contents = [bytes([number]) * 50_000 for number in range(8)]

    with ThreadPoolExecutor(8) as threads:
        references = list(threads.map(lambda data: objects.put("a", data, durable=False), contents))

    torn = [reference for reference in references if raises(ObjectCorrupt, objects.get, reference)]
    assert len(torn) == 7


def test_check_integrity_names_missing_and_corrupt_objects(objects: ObjectStore) -> None:
    sound, gone, changed = (objects.put(key, b"bytes") for key in ("sound", "gone", "changed"))
    objects.delete("gone")
    objects.put("changed", b"other")

    problems = objects.check_integrity([sound, gone, changed])

    assert len(problems) == 2
    assert "'gone'" in problems[0]
    assert "'changed'" in problems[1]


def test_get_errors_name_neither_keys_nor_digests(objects: ObjectStore) -> None:
    reference = objects.put("secret/key", b"bytes")
    objects.put("secret/key", b"other")
    messages = []

    for broken in (reference, replace(reference, key="secret/gone"), replace(reference, size_bytes=4)):
        with pytest.raises((ObjectCorrupt, ObjectMissing)) as caught:
            objects.get(broken)
        messages.append(caught.value.message)

    assert not [message for message in messages if "secret" in message or "sha256" in message]
