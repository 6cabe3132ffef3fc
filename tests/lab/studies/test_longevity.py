"""Test clusters that come back, that lose their rank, and that disappear."""

import numpy as np

from lab.studies.longevity import DistinctPrompts, cluster_longevity

CATS, DOGS, SHIPS, TREES = np.eye(4, dtype=np.float32)


Group = tuple[np.ndarray, int]


def window(*groups: Group) -> list[Group]:
    """Return groups of one prompt each, with their uses."""
    return list(groups)


def longevity(windows, top_percent, min_samples=3):
    vectors = np.stack([vector for groups in windows for vector, _ in groups])
    ends = np.cumsum([len(groups) for groups in windows])
    numbered = [
        DistinctPrompts(np.arange(end - len(groups), end), np.asarray([uses for _, uses in groups]))
        for groups, end in zip(windows, ends, strict=True)
    ]
    return cluster_longevity(vectors, numbered, 0.1, (top_percent,), min_samples)


def shares(windows, top_percent):
    _, rows = longevity(windows, top_percent)
    return {row.lag: (row.share, row.share_from_first, row.base_count) for row in rows}


def test_cluster_lives_while_it_is_at_the_top():
    windows = [window((CATS, 9), (DOGS, 5)), window((DOGS, 9), (CATS, 5)), window((CATS, 7), (SHIPS, 6))]

    # Half a percent of two clusters is one: cats, dogs, cats.
    assert shares(windows, 50.0) == {1: (0.0, 0.0, 2), 2: (1.0, 1.0, 1)}
    # All clusters: cats and dogs, then no dogs.
    assert shares(windows, 100.0) == {1: (0.75, 1.0, 4), 2: (0.5, 0.5, 2)}


def test_too_rare_cluster_does_not_live_on():
    windows = [window((CATS, 9)), window((CATS, 2), (DOGS, 9))]

    assert shares(windows, 100.0)[1] == (0.0, 0.0, 1)


def test_a_window_without_clusters_has_no_share():
    windows = [window((CATS, 1)), window((CATS, 9)), window((CATS, 9))]

    assert shares(windows, 100.0) == {1: (1.0, None, 1), 2: (None, None, 0)}


def test_only_near_prompts_are_the_same_cluster():
    near = np.asarray([0.98, np.sqrt(1 - 0.98**2), 0, 0], np.float32)
    far = np.asarray([0.8, 0.6, 0, 0], np.float32)

    assert shares([window((CATS, 9)), window((near, 9))], 100.0)[1][0] == 1.0
    assert shares([window((CATS, 9)), window((far, 9))], 100.0)[1][0] == 0.0


def test_windows_say_how_much_is_in_clusters():
    seen, _ = longevity([window((CATS, 6), (DOGS, 3), (SHIPS, 1))], 10.0)

    assert (seen[0].prompt_count, seen[0].cluster_count) == (10, 2)
    assert (seen[0].clustered_share, seen[0].largest_share) == (0.9, 0.6)


def test_equal_prompts_are_one_with_its_uses():
    prompts = ["a ship", "a cat", "a dog", "a cat", "a tree"]

    found = DistinctPrompts.of(prompts, np.asarray([1, 2, 3]))

    assert found.rows.tolist() == [1, 2]
    assert found.uses.tolist() == [2, 1]
