"""Test a study of a log with known figures, and its reports."""

import json

import numpy as np
import pytest

from lab.studies import PromptLog, StudySettings, make_study, study_as_json, study_as_text, study_panels
from pentimento.domain.errors import InvalidArgument
from tests.support.refusals import wrong_refusals

CAT, DOG, SHIP = np.eye(3, dtype=np.float32)
DAY_S = 86_400.0
# Two days of one user's cats and another's dogs, out of order in the file.
LOG = PromptLog(
    "log",
    ("cat", "dog", "cat", "cat", "dog", "ship"),
    np.asarray([0.0, 60.0, 120.0, DAY_S + 1, DAY_S + 2, 30.0]),
    ("a", "b", "a", "a", "b", "a"),
)
VECTORS = np.stack([CAT, DOG, CAT, CAT, DOG, SHIP])
SETTINGS = StudySettings(min_samples=1, eps=(0.1,), top_percents=(100.0,))


def test_study_follows_the_order_of_times():
    study = make_study(LOG, VECTORS, SETTINGS)

    # In order of time: cat, ship, dog, cat | cat, dog.
    assert (study.prompt_count, study.distinct_count, study.user_count) == (6, 3, 2)
    assert study.duration_s == DAY_S + 2
    assert study.exact_repeat_share == pytest.approx(3 / 6)
    assert study.nearest_shares == pytest.approx((0.5,) * 5)
    assert study.ceiling.hit_rate == study.ceiling.hit_rate_misses_only == study.ceiling.hit_rate_own == 0.5
    assert study.ceiling.saved_share == pytest.approx(0.25)
    by_age = {point.age: point.donor_share for point in study.by_age_s}
    assert by_age[60.0] == 0.0
    assert by_age[600.0] == pytest.approx(1 / 3)
    assert by_age[86_400.0] == 1.0
    (row,) = study.longevity
    assert (row.lag, row.share) == (1, pytest.approx(2 / 3))
    assert study.sessions.within.mean == pytest.approx(1 / 3)
    assert study.sessions.across.mean == 0.0


def test_log_without_times_has_windows_of_prompts():
    log = PromptLog("log", LOG.prompts)

    study = make_study(log, VECTORS, StudySettings(window_prompts=3, min_samples=1, eps=(0.1,), top_percents=(100.0,)))

    assert [window.prompt_count for window in study.windows] == [3, 3]
    assert (study.user_count, study.duration_s, study.by_age_s, study.sessions) == (None, None, None, None)


def test_without_a_length_ten_windows_are_made():
    log = PromptLog("log", ("cat",) * 25)

    study = make_study(log, np.stack([CAT] * 25), StudySettings(eps=(0.1,)))

    assert [window.prompt_count for window in study.windows] == [3] * 8 + [1]


WRONG = [
    (SETTINGS, VECTORS[:5], "embeddings"),
    (StudySettings(warm_up=6), VECTORS, "warm-up"),
    (StudySettings(warm_up=-1), VECTORS, "warm-up"),
    (StudySettings(window_s=0.0), VECTORS, "window-s"),
    (StudySettings(window_s=float("nan")), VECTORS, "window-s"),
    (StudySettings(session_s=-1.0), VECTORS, "session-s"),
    (StudySettings(window_prompts=0), VECTORS, "window-prompts"),
]


def test_wrong_setting_is_named():
    rows = [(settings, vectors, f"^{field}: ") for settings, vectors, field in WRONG]

    assert wrong_refusals(InvalidArgument, lambda settings, vectors: make_study(LOG, vectors, settings), rows) == []


@pytest.mark.parametrize("log", [LOG, PromptLog("log", LOG.prompts)])
def test_reports_have_figures_and_no_prompts(log):
    study = make_study(log, VECTORS, SETTINGS, {"encoder": "sha256:x"})

    document = json.loads(study_as_json(study))
    text = study_as_text(study)

    assert document["ceiling"]["hit_rate"] == 0.5
    assert document["provenance"] == {"composite": False, "encoder": "sha256:x"}
    assert document["by_size"][-1]["entries"] is None
    assert "25.0 %, hit rate 50.0 %" in text
    for form in (study_as_json(study), text, repr(study_panels(study))):
        assert not any(f'"{prompt}"' in form or f" {prompt} " in form for prompt in ("cat", "dog", "ship"))


def test_study_panels_show_the_figures():
    # Eleven prompts: a cache of ten entries is drawn, a larger one would hold them all.
    log = PromptLog("log", ("cat",) * 11, np.arange(11.0) * DAY_S / 5, ("a", "b") * 5 + ("a",))

    panels = study_panels(make_study(log, np.stack([CAT] * 11), StudySettings()))

    assert len(panels) == 6
    assert panels[0].series[0].y == pytest.approx((10 / 11,))
    # Every session has one prompt, so that there is no pair within it.
    assert {series.name for series in panels[5].series} == {"between a user's", "with other users"}
