"""Tables in force: rows raised by hits, in a monotonic order."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.online_quality import ComparedHit, ThresholdPosition
from pentimento.policies.cache_selection import SelectionRules, Threshold, allowed_steps
from pentimento.policies.reuse_rules import RAISED, FollowedRow, ModelReuse, ReuseTable, followed_rows, in_force, row_of

LATENTS = ReuseTable((Threshold(0.7, 0.1), Threshold(0.8, 0.2), Threshold(0.9, 0.3)), 0.9, "latents of heavy")
IMAGES = ReuseTable((Threshold(0.25, 0.1),), 0.95, "images of light for heavy", reference_model_digest="sha256:heavy")
REUSE = ModelReuse(LATENTS, IMAGES, SelectionRules())
KEY = ("sha256:light", "sha256:clip")
ROWS = followed_rows(REUSE, *KEY)

similarities = st.floats(-1, 0.9999)


def raised(*similarity: float) -> ModelReuse:
    """Return the first rows of latents as moved by their hits."""
    positions = {row.watched: ThresholdPosition(each) for row, each in zip(ROWS, similarity, strict=False)}
    return in_force(REUSE, *KEY, positions)


def hit(**changes: object) -> ComparedHit:
    seen = ComparedHit("r", KEY[0], KEY[0], KEY[1], False, 5, 50, 0.9, 0.3, 0.3)
    return replace(seen, **changes)  # type: ignore[arg-type]


def step_of(row: FollowedRow | None) -> float | None:
    return row.threshold.saved_share if row is not None else None


def test_raised_row_raises_rows_that_skip_more_without_hits() -> None:
    found = raised(0.85)

    assert [row.min_similarity for row in found.latents.thresholds] == [0.85, 0.85, 0.9]
    assert found.latents.source == f"latents of heavy, {RAISED}"
    assert found.images == IMAGES


def test_row_raised_past_next_one_does_not_block_it() -> None:
    """It serves no hits, so none could ever lower it: reuse would end permanently."""
    assert [row.min_similarity for row in raised(0.9999, -1.0).latents.thresholds] == [0.8, 0.8, 0.9]
    assert [row.min_similarity for row in raised(0.9999, -1.0, 0.95).latents.thresholds] == [0.8, 0.8, 0.95]
    assert [row.min_similarity for row in raised(0.92, 0.9999, 0.95).latents.thresholds] == [0.92, 0.95, 0.95]
    assert [row.min_similarity for row in raised(0.75, 0.92).latents.thresholds] == [0.75, 0.92, 0.92]


def test_table_without_own_samples_is_the_profiles() -> None:
    assert raised() == REUSE
    assert raised(-1.0, 0.5) == REUSE


def test_row_of_images_is_compared_with_replaced_model() -> None:
    watched = ROWS[-1].watched

    assert (watched.from_image, watched.reference_model_digest) == (True, "sha256:heavy")
    assert {row.watched.reference_model_digest for row in ROWS[:-1]} == {"sha256:light"}
    moved = in_force(REUSE, *KEY, {watched: ThresholdPosition(0.3)})
    assert moved.images.thresholds == (Threshold(0.3, 0.1),)
    assert moved.latents == LATENTS


def test_a_row_is_watched_as_the_millionths_of_the_steps_that_it_skips() -> None:
    table = ReuseTable((Threshold(0.7, 0.9), Threshold(0.6, 0.12345678)), 0.9, "latents of heavy")

    watched = [row.watched for row in followed_rows(replace(REUSE, latents=table), *KEY)]

    assert [row.saved_ppm for row in watched] == [900_000, 123_457, 100_000]
    assert {(row.encoder_digest, row.model_digest) for row in watched} == {("sha256:clip", "sha256:light")}


def test_a_hit_is_its_rows_by_the_steps_that_it_skipped() -> None:
    assert step_of(row_of(ROWS, hit())) == 0.1
    assert step_of(row_of(ROWS, hit(skipped_steps=3, step_count=12))) == 0.3
    assert step_of(row_of(ROWS, hit(skipped_steps=6))) is None
    assert step_of(row_of(ROWS, hit(from_image=True))) is None
    images = row_of(ROWS, hit(from_image=True, reference_model_digest="sha256:heavy"))
    assert images is not None
    assert images.table == IMAGES


@given(st.lists(similarities, max_size=3), similarities, similarities, st.integers(2, 60))
def test_tables_in_force_allow_at_most_profile_and_grow_with_similarity(
    positions: list[float], one: float, other: float, step_count: int
) -> None:
    rows = raised(*positions).latents.thresholds
    far, near = sorted((one, other))

    assert allowed_steps(far, step_count, rows) <= allowed_steps(far, step_count, LATENTS.thresholds)
    assert allowed_steps(far, step_count, rows) <= allowed_steps(near, step_count, rows)
