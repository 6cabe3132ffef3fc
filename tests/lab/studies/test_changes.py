"""Test the differences between prompts that are near each other."""

import numpy as np
import pytest

from lab.studies.changes import attribute_changes
from lab.studies.neighbours import EarlierNeighbours


def neighbours(similarity: list[float], donor: list[int]) -> EarlierNeighbours:
    return EarlierNeighbours((), np.asarray(similarity, np.float32), np.asarray(donor), np.zeros((0, len(donor)), int))


def rows_of(prompts, similarity, donor, warm_up=0):
    rows, limit = attribute_changes(prompts, neighbours(similarity, donor), warm_up)
    return {(row.is_long, row.from_similarity): row for row in rows}, limit


def test_words_colours_and_numbers_are_counted_where_they_changed():
    prompts = ["two red cats", "3 red cats", "two blue, blue cats!", "Two red cats"]

    rows, limit = rows_of(prompts, [-2.0, 0.95, 0.7, 0.99], [-1, 0, 0, 0])

    near, low = rows[False, 0.9], rows[True, 0.65]
    assert limit == pytest.approx(3.1, abs=0.1)
    # One number took another's place; letters of another size are no change of a word.
    assert (near.pair_count, near.words, near.colours, near.numbers) == (2, 0.5, 0.0, 0.5)
    # Red became blue, twice.
    assert (low.pair_count, low.words, low.colours, low.numbers) == (1, 2.0, 2.0, 0.0)


def test_equal_and_first_prompts_make_no_pair():
    rows, _ = rows_of(["a cat", "a cat"], [-2.0, 1.0], [-1, 0])

    assert {row.pair_count for row in rows.values()} == {0}
    assert {row.words for row in rows.values()} == {None}


def test_every_similarity_has_one_bucket():
    buckets = {-1.0000001: -1.0, 0.64: -1.0, 0.65: 0.65, 0.8: 0.8, 0.9: 0.9, 1.0000001: 0.9}
    for similarity, bucket in buckets.items():
        rows, _ = rows_of(["a cat", "a dog"], [-2.0, similarity], [-1, 0])

        assert [low for (_, low), row in rows.items() if row.pair_count] == [bucket], similarity


def test_the_warm_up_counts_for_nothing():
    rows, _ = rows_of(["a cat", "a dog", "a ship"], [-2.0, 0.95, 0.95], [-1, 0, 1], warm_up=2)

    assert rows[False, 0.9].pair_count == 1
