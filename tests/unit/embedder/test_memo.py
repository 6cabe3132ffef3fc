"""The memo keeps the entries used last, and never mixes encoders, kinds or contents."""

from hypothesis import given
from hypothesis import strategies as st

from services.embedder.embedder import EmbeddingMemo


def test_a_key_depends_on_encoder_partition_kind_and_content():
    one, other = EmbeddingMemo(4, "sha256:a"), EmbeddingMemo(4, "sha256:b")

    keys = {
        one.key("tenant", "text", b"x"),
        one.key("tenant", "text", b"y"),
        one.key("tenant", "image", b"x"),
        one.key("tenanttext", "", b"x"),
        one.key("other", "text", b"x"),
        other.key("tenant", "text", b"x"),
    }

    assert len(keys) == 6
    assert one.key("tenant", "text", b"x") in keys


def test_the_entry_used_longest_ago_goes_first():
    memo = EmbeddingMemo(2, "e")
    memo.put(b"a", b"1")
    memo.put(b"b", b"2")
    memo.get(b"a")

    memo.put(b"c", b"3")

    assert (memo.get(b"a"), memo.get(b"b"), memo.get(b"c")) == (b"1", None, b"3")
    assert (memo.hit_count, memo.miss_count) == (3, 1)


@given(st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.binary(max_size=1))))
def test_memo_stays_within_its_capacity_and_correct(capacity, steps):
    memo = EmbeddingMemo(capacity, "e")

    for is_put, key in steps:
        if is_put:
            memo.put(key, b"vector of " + key)
        else:
            assert memo.get(key) in (None, b"vector of " + key)
        assert len(memo) <= capacity
