"""Test the choice of a start."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.policies.cache_selection import (
    NIRVANA_LATENT_THRESHOLDS,
    Miss,
    NearestEntry,
    Renoising,
    SelectionContext,
    SelectionRules,
    Threshold,
    UseImage,
    UseLatent,
    allowed_steps,
    capture_steps,
    keeps_image,
    kept_steps,
    renoising_of,
    select_start,
)

RULES = SelectionRules()
WITH_IMAGES = SelectionRules(images=(Threshold(0.25, 0.1), Threshold(0.3, 0.6)))
ALL = (5, 10, 15, 20, 25)

similarities = st.floats(-1, 1)
step_sets = st.lists(st.integers(1, 99), max_size=6).map(tuple)


def by_text(similarity: float, steps: tuple[int, ...] = ALL, step_count: int = 50) -> SelectionContext:
    return SelectionContext(step_count, [NearestEntry(similarity, steps)])


LATENTS = [
    *[(similarity, ALL, 50, step) for similarity, step in ((0.65, 5), (0.7499, 5), (0.75, 10), (0.85, 15))],
    *[(similarity, ALL, 50, step) for similarity, step in ((0.9, 20), (0.95, 25), (1.0, 25))],
    # Holes are served from below.
    *[(0.91, stored, 50, step) for stored, step in (((5, 25), 5), ((5, 10), 10), ((7,), 7), ((20,), 20))],
    (0.65, (1,), 10, 1),
]


@pytest.mark.parametrize(("similarity", "stored", "step_count", "step"), LATENTS)
def test_select_latent_by_table(similarity: float, stored: tuple[int, ...], step_count: int, step: int) -> None:
    selection = select_start(by_text(similarity, stored, step_count), RULES)

    assert isinstance(selection, UseLatent)
    assert selection.resume_step == step


def by_image(similarity: float, has_image: bool = True) -> SelectionContext:
    return SelectionContext(50, by_image=[NearestEntry(similarity, ALL, has_image=has_image)])


HOLE = Miss("miss: similarity 0.910 allows step 20, but no latent up to it is stored", 20)
TOO_FAR = "miss: nearest text-to-image similarity 0.200, needed 0.300"
ONLY_IMAGES = SelectionRules(latents=(), images=(Threshold(0.3, 0.6),))
MISSES = {
    "nothing near": (SelectionContext(50), RULES, Miss("miss: no compatible entry")),
    "too far": (by_text(0.6), RULES, Miss("miss: nearest similarity 0.600, needed 0.650")),
    "no table of latents": (by_text(1.0), replace(RULES, latents=()), Miss("miss: reuse of latents is switched off")),
    "nothing stored": (by_text(0.91, ()), RULES, HOLE),
    "only later steps stored": (by_text(0.91, (25,)), RULES, HOLE),
    "the nearest is named": (SelectionContext(50, [NearestEntry(0.91, (25,)), NearestEntry(0.9, (25,))]), RULES, HOLE),
    "no table of images": (by_image(0.99), RULES, Miss("miss: no compatible entry")),
    "no image": (by_image(0.99, has_image=False), WITH_IMAGES, Miss("miss: no compatible entry")),
    "image too far": (by_image(0.2), WITH_IMAGES, Miss("miss: no compatible entry")),
    "only images, too far": (by_image(0.2), ONLY_IMAGES, Miss(TOO_FAR)),
    "only images, none": (SelectionContext(50), ONLY_IMAGES, Miss("miss: no compatible image")),
}


def test_select_miss_names_missing_condition() -> None:
    found = {name: select_start(context, rules) for name, (context, rules, _) in MISSES.items()}

    assert found == {name: miss for name, (_, _, miss) in MISSES.items()}
    assert isinstance(select_start(by_image(0.99), WITH_IMAGES), UseImage)


@pytest.mark.parametrize("similarity", [0.6499, 0.0, -1.0])
def test_below_the_lowest_threshold_nothing_is_reused(similarity: float) -> None:
    assert isinstance(select_start(by_text(similarity), RULES), Miss)


@pytest.mark.parametrize(
    ("step_count", "steps"), [(50, ALL), (30, (3, 6, 9, 12, 15)), (20, (2, 4, 6, 8, 10)), (2, (1,))]
)
def test_steps_scale_with_the_schedule(step_count: int, steps: tuple[int, ...]) -> None:
    assert capture_steps(step_count, RULES) == steps


def test_a_schedule_of_one_step_leaves_nothing_to_reuse() -> None:
    assert capture_steps(1, RULES) == ()
    assert isinstance(select_start(by_text(1.0, step_count=1), RULES), Miss)


@pytest.mark.parametrize(
    ("text", "image", "found"),
    [(0.66, 0.2, (True, 50)), (0.66, 0.9, (True, 50)), (0.6, 0.25, (False, 50)), (0.6, 0.2, None)],
)
def test_whole_images_are_found_by_both_tables(text: float, image: float, found: tuple[bool, int] | None) -> None:
    rules = replace(WITH_IMAGES, retrieves=True, renoised_share=1.0)
    texts = [NearestEntry(text, ALL, has_image=True)]

    selection = select_start(SelectionContext(50, texts, [NearestEntry(image, has_image=True)]), rules)

    if found is None:
        assert selection == Miss("miss: nearest text-to-image similarity 0.200, needed 0.250")
    else:
        assert isinstance(selection, UseImage)
        assert (selection.found_by_text, selection.saved_steps) == found


@pytest.mark.parametrize(
    ("text", "image", "kind"), [(0.96, 0.26, UseLatent), (0.66, 0.31, UseImage), (0.66, 0.26, UseLatent)]
)
def test_whichever_saves_more_is_taken_and_the_latent_on_a_tie(text: float, image: float, kind: type) -> None:
    context = SelectionContext(50, [NearestEntry(text, ALL)], [NearestEntry(image, has_image=True)])

    assert isinstance(select_start(context, WITH_IMAGES), kind)


@pytest.mark.parametrize(("quality", "is_miss"), [(None, False), (0.5, False), (0.9, False), (0.91, True), (1.0, True)])
def test_quality_beyond_the_profile_is_not_promised(quality: float | None, is_miss: bool) -> None:
    context = SelectionContext(50, [NearestEntry(1.0, ALL)], quality=quality)

    assert isinstance(select_start(context, RULES), Miss) == is_miss


@given(similarity=similarities, stored=step_sets, step_count=st.integers(1, 100))
def test_selected_latent_is_stored_and_allowed_by_similarity(
    similarity: float, stored: tuple[int, ...], step_count: int
) -> None:
    selection = select_start(by_text(similarity, stored, step_count), RULES)

    allowed = allowed_steps(similarity, step_count, NIRVANA_LATENT_THRESHOLDS)
    if isinstance(selection, UseLatent):
        assert selection.resume_step in stored
        assert 0 < selection.resume_step <= allowed < step_count
    else:
        assert not any(step <= allowed for step in stored)


@given(st.lists(similarities, min_size=2, max_size=10).map(sorted), st.integers(1, 200))
def test_a_nearer_entry_never_saves_less(ordered: list[float], step_count: int) -> None:
    steps = [allowed_steps(similarity, step_count, NIRVANA_LATENT_THRESHOLDS) for similarity in ordered]

    assert all(one <= other for one, other in pairwise(steps))


@pytest.mark.parametrize(
    ("similarity", "share"), [(1.1, 0.5), (-1.1, 0.5), (0.5, 0.0), (0.5, 1.0), (float("nan"), 0.5)]
)
def test_thresholds_that_make_no_sense_are_refused(similarity: float, share: float) -> None:
    with pytest.raises(ValueError):
        Threshold(similarity, share)


@pytest.mark.parametrize("similarity", [-1.0, 1.0])
def test_threshold_may_be_minus_one_or_one(similarity: float) -> None:
    assert Threshold(similarity, 0.5).min_similarity == similarity


@pytest.mark.parametrize(
    ("start_step", "of_hits", "kept"),
    [(0, False, (5, 10, 15, 20, 25)), (10, False, ()), (10, True, (15, 20, 25)), (25, True, ())],
)
def test_hits_leave_later_latents_only_where_the_rules_say_so(
    start_step: int, of_hits: bool, kept: tuple[int, ...]
) -> None:
    assert kept_steps(50, start_step, SelectionRules(keeps_latents_of_hits=of_hits)) == kept


@pytest.mark.parametrize(
    ("start_step", "of_hits", "kept"), [(0, True, True), (0, False, True), (9, True, True), (9, False, False)]
)
def test_images_of_hits_are_kept_unless_the_rules_say_otherwise(start_step: int, of_hits: bool, kept: bool) -> None:
    rules = SelectionRules(images=(Threshold(0.3, 0.6),), keeps_images_of_hits=of_hits)

    assert keeps_image(start_step, rules) is kept


def test_without_a_table_for_images_none_is_kept() -> None:
    assert not keeps_image(0, SelectionRules())


def test_of_the_nearest_entries_the_one_that_saves_most_serves() -> None:
    # At 0.96 K = 25 would be allowed, but the nearest entry holds K = 5 alone.
    context = SelectionContext(50, [NearestEntry(0.96, (5,)), NearestEntry(0.91, ALL), NearestEntry(0.9, ALL)])

    why = "latent at step 20 of 50: similarity 0.910 allows 20, a hole loses 5 steps"
    assert select_start(context, RULES) == UseLatent(20, why, 1, hole_steps=5)


def test_of_entries_that_save_as_much_the_nearest_serves() -> None:
    context = SelectionContext(50, [NearestEntry(0.93, (20,)), NearestEntry(0.92, ALL)])

    selection = select_start(context, RULES)

    assert isinstance(selection, UseLatent)
    assert (selection.resume_step, selection.entry) == (20, 0)


def test_entry_without_image_is_skipped_for_farther_one() -> None:
    context = SelectionContext(50, by_image=[NearestEntry(0.4, ALL), NearestEntry(0.31, has_image=True)])

    assert select_start(context, WITH_IMAGES) == UseImage(
        30, "image at step 30 of 50: text-to-image similarity 0.310", 1
    )


@pytest.mark.parametrize(("nearest", "read"), [(NearestEntry(0.91, ALL), 2), (NearestEntry(0.91, (5,)), 3)])
def test_no_entry_is_read_that_could_not_save_more(nearest: NearestEntry, read: int) -> None:
    seen: list[NearestEntry] = []

    def entries() -> Iterator[NearestEntry]:
        for entry in (nearest, NearestEntry(0.9, ALL), NearestEntry(0.89, ALL), NearestEntry(0.6, ALL)):
            seen.append(entry)
            yield entry

    select_start(SelectionContext(50, entries()), RULES)

    assert len(seen) == read


entries_of_texts = st.lists(st.builds(NearestEntry, similarities, step_sets), max_size=6).map(
    lambda entries: sorted(entries, key=lambda entry: -entry.similarity)
)


@given(entries_of_texts, st.integers(1, 100))
def test_a_selection_saves_as_much_as_the_best_of_its_entries_alone(
    entries: list[NearestEntry], step_count: int
) -> None:
    def steps(chosen: list[NearestEntry]) -> int:
        selection = select_start(SelectionContext(step_count, chosen), RULES)
        return selection.resume_step if isinstance(selection, UseLatent) else 0

    assert steps(entries) == max((steps([entry]) for entry in entries), default=0)


@pytest.mark.parametrize(
    ("step", "again", "back"), [(25, 22, 5), (20, 18, 4), (10, 9, 2), (5, 4, 1), (2, 1, 1), (1, 0, 0)]
)
def test_start_of_another_seed_saves_four_fifths(step: int, again: int, back: int) -> None:
    assert renoising_of(step, SelectionRules(renoised_share=0.9, retaken_share=0.2)) == Renoising(again, back)


@pytest.mark.parametrize(("share", "again"), [(0.0, 0), (0.2, 5), (1.0, 24)])
def test_all_steps_lead_back_where_all_are_retaken(share: float, again: int) -> None:
    assert renoising_of(25, SelectionRules(renoised_share=share)) == Renoising(again, again)


VARIED = SelectionRules(images=(Threshold(0.3, 21 / 50),), renoised_share=0.9, retaken_share=0.2)


def test_latent_of_another_seed_is_noised_again() -> None:
    chosen = select_start(SelectionContext(50, [NearestEntry(0.99, ALL)]), VARIED)

    assert isinstance(chosen, UseLatent)
    assert (chosen.resume_step, chosen.renoising, chosen.saved_steps) == (25, Renoising(22, 5), 20)
    assert chosen.reason.endswith("noised again to 3 by its seed, 5 steps back")


def test_image_of_another_seed_is_noised_further() -> None:
    chosen = select_start(SelectionContext(50, (), [NearestEntry(0.4, has_image=True)]), VARIED)

    assert isinstance(chosen, UseImage)
    assert (chosen.start_step, chosen.renoising, chosen.saved_steps) == (21, Renoising(18, 4), 17)


def test_own_latent_is_resumed_as_stored() -> None:
    entries = [NearestEntry(1.0, (5, 20), is_own=True), NearestEntry(1.0, ALL)]

    chosen = select_start(SelectionContext(50, entries), VARIED)

    assert isinstance(chosen, UseLatent)
    assert (chosen.entry, chosen.resume_step, chosen.renoising, chosen.saved_steps) == (0, 20, Renoising(), 20)


def test_own_image_is_made_from_noise_again() -> None:
    entries = [NearestEntry(0.4, has_image=True, is_own=True), NearestEntry(0.5, has_image=True)]

    chosen = select_start(SelectionContext(50, (), entries), replace(VARIED, latents=()))

    assert chosen == Miss("miss: the image of this prompt and seed was generated from noise, and is again")


def test_latent_of_the_first_step_serves_no_other_seed() -> None:
    chosen = select_start(SelectionContext(10, [NearestEntry(0.66, (1,))]), VARIED)

    assert chosen == Miss("miss: a latent at step 1 would give every seed the same image")


def test_renoised_latent_saves_less_than_image() -> None:
    near = NearestEntry(0.99, ALL, has_image=True)
    context = SelectionContext(50, [near], [NearestEntry(0.99, has_image=True)])
    images = (Threshold(0.3, 22 / 50),)

    as_stored = select_start(context, SelectionRules(images=images))
    varied = select_start(context, SelectionRules(images=images, renoised_share=0.9, retaken_share=0.2))

    assert isinstance(as_stored, UseLatent) and as_stored.saved_steps == 25
    assert isinstance(varied, UseLatent) and varied.saved_steps == 20
