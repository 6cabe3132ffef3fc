"""What every object store must do, run on each of them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.store import MAX_ASIDE_COUNT, StoreUsage, aside_name, beyond_bounds, digest_of

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


def test_what_was_put_is_got(objects: ObjectStore) -> None:
    reference = objects.put("cache/a/1", b"bytes")

    assert objects.get(reference) == b"bytes"
    assert reference.size_bytes == 5
    assert reference.digest == "sha256:" + "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9"


def test_large_and_empty_objects(objects: ObjectStore) -> None:
    large = bytes(range(256)) * 20_000

    assert objects.get(objects.put("large", large)) == large
    assert objects.get(objects.put("empty", b"", durable=False)) == b""


def test_objects_outlive_the_process_that_put_them(objects_url: str) -> None:
    reference = open_objects(objects_url).put("a", b"bytes")

    assert open_objects(objects_url).get(reference) == b"bytes"


def test_put_replaces(objects: ObjectStore) -> None:
    first = objects.put("a", b"one")
    second = objects.put("a", b"other")

    assert objects.get(second) == b"other"
    with pytest.raises(ObjectCorrupt):
        objects.get(first)


def test_a_missing_object_is_typed(objects: ObjectStore) -> None:
    with pytest.raises(ObjectMissing):
        objects.get(ObjectReference("nothing/here", "sha256:" + "0" * 64, 1))


def test_another_digest_of_the_same_size_is_corrupt(objects: ObjectStore) -> None:
    reference = objects.put("a", b"bytes")

    with pytest.raises(ObjectCorrupt):
        objects.get(replace(reference, digest="sha256:" + "0" * 64))


def test_another_size_is_corrupt(objects: ObjectStore) -> None:
    reference = objects.put("a", b"bytes")

    with pytest.raises(ObjectCorrupt):
        objects.get(replace(reference, size_bytes=4))


def test_a_corrupt_object_is_set_aside_and_is_missing_from_then_on(objects: ObjectStore) -> None:
    reference = objects.put("results/a", b"bytes")
    objects.put("results/a", b"torn!")

    assert objects.set_aside(reference)

    with pytest.raises(ObjectMissing):
        objects.get(reference)
    assert list(objects.keys()) == []
    assert not objects.set_aside(reference)


def test_what_two_readers_find_corrupt_at_once_is_all_set_aside(tmp_path: Path) -> None:
    """More than are kept, so that each of them deletes what the other has listed."""
    objects = open_objects(f"file://{tmp_path}/objects")
    stored = [objects.put(f"k{number}", b"data", durable=False) for number in range(4 * MAX_ASIDE_COUNT)]
    corrupt = [replace(reference, digest=digest_of(b"other")) for reference in stored]

    with ThreadPoolExecutor(2) as readers:
        was_corrupt = list(readers.map(objects.set_aside, corrupt))

    assert all(was_corrupt)
    assert len(list((tmp_path / "objects" / "quarantine").iterdir())) <= MAX_ASIDE_COUNT
    assert list(objects.keys()) == []


def test_a_sound_object_is_not_set_aside(objects: ObjectStore) -> None:
    reference = objects.put("results/a", b"bytes")

    assert not objects.set_aside(reference)

    assert objects.get(reference) == b"bytes"


def test_of_what_is_set_aside_the_newest_stay_within_bounds() -> None:
    many = {aside_name("results/a", number): 1 for number in range(70)}
    large = {aside_name("results/a", number): 100 * 2**20 for number in range(5)}
    four_fill_it = {aside_name("results/a", number): 64 * 2**20 for number in range(5)}

    assert sorted(beyond_bounds(many)) == sorted(many)[:6]
    assert sorted(beyond_bounds(large)) == sorted(large)[:3]
    assert beyond_bounds(four_fill_it) == sorted(four_fill_it)[:1]


def test_usage_counts_what_lies_under_a_prefix(objects: ObjectStore) -> None:
    for key, size in (("cache/x/1", 10), ("cache/x/2", 5), ("cache/y/1", 100)):
        objects.put(key, bytes(size))
    aside = objects.put("cache/x/3", b"sound")
    objects.put("cache/x/3", b"torn!")
    objects.set_aside(aside)

    assert objects.usage("cache/x/") == StoreUsage(2, 15)
    assert objects.usage() == StoreUsage(3, 115)
    assert objects.usage("cache/z/") == StoreUsage(0, 0)


def test_nothing_is_swept_where_every_upload_came_to_its_end(objects: ObjectStore) -> None:
    reference = objects.put("a", b"bytes")

    assert objects.sweep_uploads(0.0) == 0
    assert objects.get(reference) == b"bytes"


def test_delete_is_repeatable(objects: ObjectStore) -> None:
    reference = objects.put("a", b"bytes")

    objects.delete("a")
    objects.delete("a")

    with pytest.raises(ObjectMissing):
        objects.get(reference)


def test_keys_by_prefix(objects: ObjectStore) -> None:
    for key in ("cache/x/1", "cache/x/2", "cache/y/1", "results/1"):
        objects.put(key, b"")

    assert sorted(objects.keys("cache/x/")) == ["cache/x/1", "cache/x/2"]
    assert sorted(objects.keys()) == ["cache/x/1", "cache/x/2", "cache/y/1", "results/1"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_are_paths_or_worse_are_refused(objects: ObjectStore, key: str) -> None:
    with pytest.raises(InvalidArgument):
        objects.put(key, b"")
    with pytest.raises(InvalidArgument):
        objects.get(ObjectReference(key, "sha256:" + "0" * 64, 0))
    with pytest.raises(InvalidArgument):
        objects.delete(key)
    assert list(objects.keys()) == []


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(max_size=40))
def test_any_text_is_either_a_key_that_lists_or_refused(objects: ObjectStore, key: str) -> None:
    try:
        objects.put(key, b"x", durable=False)
    except InvalidArgument:
        assert key not in set(objects.keys())
    else:
        assert key in set(objects.keys())
        objects.delete(key)


def test_concurrent_puts_of_one_key_leave_one_whole_object(objects: ObjectStore) -> None:
    contents = [bytes([number]) * 50_000 for number in range(8)]

    with ThreadPoolExecutor(8) as threads:
        references = list(threads.map(lambda data: objects.put("a", data, durable=False), contents))

    readable = [reference for reference in references if _reads(objects, reference)]
    assert len(readable) == 1


def test_integrity_names_what_is_missing_or_corrupt(objects: ObjectStore) -> None:
    sound, gone, changed = (objects.put(key, b"bytes") for key in ("sound", "gone", "changed"))
    objects.delete("gone")
    objects.put("changed", b"other")

    problems = objects.check_integrity([sound, gone, changed])

    assert len(problems) == 2
    assert "'gone'" in problems[0]
    assert "'changed'" in problems[1]


def _reads(objects: ObjectStore, reference: ObjectReference) -> bool:
    try:
        objects.get(reference)
    except ObjectCorrupt:
        return False
    return True


def test_errors_that_may_reach_clients_tell_neither_keys_nor_digests(objects: ObjectStore) -> None:
    reference = objects.put("secret/key", b"bytes")
    objects.put("secret/key", b"other")
    messages = []

    for broken in (reference, replace(reference, key="secret/gone"), replace(reference, size_bytes=4)):
        with pytest.raises((ObjectCorrupt, ObjectMissing)) as caught:
            objects.get(broken)
        messages.append(caught.value.message)

    assert not [message for message in messages if "secret" in message or "sha256" in message]
