"""Test the joint allocator's demand forecast by values worked out by hand."""

from dataclasses import replace

import pytest

from pentimento.domain.demand import StartShare
from pentimento.domain.models import Handover
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import AllocationProfile, ModelDemand, PlanInput
from pentimento.policies.plan.joint.forecast import (
    FAR,
    NEAR,
    DemandForecast,
    as_planned_for,
    observed_demand,
    starts_from_images,
)
from pentimento.policies.plan.settings import ServingSettings

# A weight that the averages of forty requests a second and more have.
SETTINGS = ServingSettings(heavy="heavy", light="light", demand_weight=0.5)
# Fifty light images that the discriminator rejects.
LOW = (50, *(0,) * 19)


def look(now_s: float, *demand: ModelDemand, before: DemandForecast | None = None) -> DemandForecast:
    """Return the forecast after one observation."""
    return observed_demand(PlanInput(now_s, (), demand), SETTINGS, before)


def test_forecast_first_rate_is_seen_or_expected() -> None:
    first = look(5.0, ModelDemand("light", 10.0, sent_on_per_s=4.0), ModelDemand("heavy", 4.0))
    demand, expecting = (ModelDemand("light", 10.0),), replace(SETTINGS, expected_per_s=3.0)
    expected = observed_demand(PlanInput(5.0, (), demand), expecting, None)

    assert (first.rate, first.trend, first.at_s) == (10.0, 0.0, 5.0)
    assert expected.rate == 3.0


def test_forecast_ignores_unplanned_models() -> None:
    """Their starts do not count for the planned models either."""
    strangers = ModelDemand("other", 90.0, starts=(StartShare(5, 90, LATENT, 10, "other"),))
    own = ModelDemand("heavy", 10.0, starts=(StartShare(0, 10, NOISE, 10),))

    assert look(5.0, own, strangers, before=DemandForecast(rate=10.0)) == look(
        5.0, own, before=DemandForecast(rate=10.0)
    )
    assert look(5.0, own, strangers).rate == 10.0


def test_more_sent_on_than_came_is_no_demand() -> None:
    assert look(0.0, ModelDemand("light", 1.0, sent_on_per_s=4.0)).rate == 0.0


def test_forecast_load_at_zero_falls_no_further() -> None:
    fell = DemandForecast(rate=0.0, trend=-2.0, at_s=0.0)

    later = look(5.0, ModelDemand("light", 20.0), before=fell)

    # Twenty a second for five seconds; each second halves the weight of earlier ones.
    assert later.rate == pytest.approx(20.0 * (1.0 - 0.5**5))
    assert later.trend > 0.0


def test_forecast_first_requests_count_equally() -> None:
    """Averages that started at no requests would count fifty misses before these hits."""
    nobody = look(5.0, before=look(0.0))
    hits = (StartShare(15, 3, LATENT, 50, "heavy"), StartShare(0, 1, NOISE, 50))

    first = look(10.0, ModelDemand("heavy", 0.8, starts=hits), before=nobody)
    later = look(15.0, ModelDemand("heavy", 0.8, starts=(StartShare(0, 4, NOISE, 50),)), before=first)

    assert (nobody.latent_share, first.latent_share, later.latent_share) == (0.0, 0.75, 0.375)


@pytest.mark.parametrize(("elapsed_s", "rate"), [(0.0, 40.0), (1.0, 60.0), (2.0, 70.0)])
def test_forecast_average_depends_on_elapsed_seconds(elapsed_s: float, rate: float) -> None:
    """80 a second after 40: half of the way in the first second, a quarter in the next."""
    after = look(10.0 + elapsed_s, ModelDemand("heavy", 80.0), before=DemandForecast(rate=40.0, at_s=10.0))

    assert (after.rate, after.at_s) == (pytest.approx(rate), 10.0 + elapsed_s)


@pytest.mark.parametrize(("came", "counted"), [(3.99, 1.0), (4.0, 4.0), (10.0, 10.0)])
def test_forecast_many_requests_count_at_once(came: float, counted: float) -> None:
    """One a second before, where a second weighs a fortieth; from twenty in five seconds on counts differ."""
    later = look(5.0, ModelDemand("light", came), before=DemandForecast(rate=1.0, at_s=0.0))

    assert later.rate == pytest.approx(came - (came - 1.0) * (1.0 - counted / 40.0) ** 5)


def test_forecast_slow_fleet_averages_longer() -> None:
    """At four requests a second, one second has a weight of a tenth."""
    after = look(1.0, ModelDemand("heavy", 8.0), before=DemandForecast(rate=4.0))

    assert after.rate == pytest.approx(4.0 + 0.1 * 4.0)


def test_forecast_trend_weighs_a_twentieth() -> None:
    steady = look(1.0, ModelDemand("heavy", 42.0), before=DemandForecast(rate=40.0, trend=2.0))
    rising = look(1.0, ModelDemand("heavy", 80.0), before=DemandForecast(rate=40.0))

    assert (steady.rate, steady.trend) == (pytest.approx(42.0), pytest.approx(2.0))
    assert rising.trend == pytest.approx(0.05 * 20.0)


def test_forecast_trend_of_slow_fleet_is_slower() -> None:
    """A tenth of the newest second in the level, a fifth of that in the trend."""
    after = look(1.0, ModelDemand("heavy", 8.0), before=DemandForecast(rate=4.0))

    assert after.trend == pytest.approx(0.02 * 0.4)


def test_forecast_trend_is_per_second() -> None:
    """70 after two seconds: 15 more in each."""
    after = look(2.0, ModelDemand("heavy", 80.0), before=DemandForecast(rate=40.0))

    assert after.trend == pytest.approx((1.0 - 0.95**2) * 15.0)


def test_demand_that_falls_is_never_below_nothing() -> None:
    assert look(10.0, before=DemandForecast(rate=40.0, trend=-30.0)).rate == 0.0


STARTS = (StartShare(0, 20, NOISE, 50), StartShare(10, 20, LATENT, 50), StartShare(25, 10, IMAGE, 50))


def test_forecast_first_starts_and_savings() -> None:
    first = look(0.0, ModelDemand("heavy", 5.0, starts=STARTS))

    assert (first.latent_share, first.image_share) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (first.latent_saved, first.image_saved) == (pytest.approx(0.2), pytest.approx(0.5))


def test_forecast_shares_move_by_request_count() -> None:
    """Fifty requests of a mean over about fifty: 1 - 0.98^50 = 0.636 of the way."""
    before = DemandForecast(rate=5.0, latent_share=0.0, image_share=0.6, latent_saved=0.4, image_saved=0.1)

    after = look(1.0, ModelDemand("heavy", 5.0, starts=STARTS), before=before)

    weight = 1.0 - 0.98**50
    assert after.latent_share == pytest.approx(weight * 0.4)
    assert after.image_share == pytest.approx(0.6 - weight * 0.4)
    assert after.latent_saved == pytest.approx(0.4 - weight * 0.2)
    assert after.image_saved == pytest.approx(0.1 + weight * 0.4)


def test_forecast_savings_move_by_hit_count() -> None:
    """Thirty hits save a tenth and ten save half: a fifth on average. The images' saving is unchanged."""
    hits = (StartShare(5, 30, LATENT, 50), StartShare(25, 10, LATENT, 50), StartShare(9, 5, LATENT, 0))

    first = look(0.0, ModelDemand("heavy", 5.0, starts=hits))

    assert (first.latent_saved, first.image_saved) == (pytest.approx(0.2), 0.3)
    assert (first.latent_share, first.image_share) == (pytest.approx(40 / 45), 0.0)


def test_forecast_without_requests_keeps_shares() -> None:
    before = DemandForecast(rate=5.0, latent_share=0.2, image_share=0.6, latent_saved=0.4, image_saved=0.1)

    after = look(1.0, before=before)

    assert (after.latent_share, after.image_share, after.latent_saved, after.image_saved) == (0.2, 0.6, 0.4, 0.1)


def test_demand_is_planned_for_by_its_starts() -> None:
    known = DemandForecast(rate=10.0, trend=0.5, latent_share=0.2, image_share=0.3)

    planned = known.by_start(4.0)

    assert planned == {NOISE: pytest.approx(6.0), LATENT: pytest.approx(2.4), IMAGE: pytest.approx(3.6)}


@pytest.mark.parametrize("before", [None, DemandForecast(rate=5.0)], ids=["first round", "later"])
def test_forecast_follows_scores_of_light_model(before: DemandForecast | None) -> None:
    demand = (ModelDemand("light", 5.0, confidences=LOW), ModelDemand("heavy", 1.0, confidences=LOW))

    after = look(1.0, *demand, before=before)

    assert after.curve == FollowedCurve(SETTINGS.deferral).after(LOW)
    assert after.curve.followed.share(0.5) == pytest.approx((0.5 + 1.0) / 2)


def test_forecast_other_curve_starts_as_measured() -> None:
    demand = ModelDemand("light", 5.0, confidences=LOW)
    before = look(1.0, demand, before=DemandForecast(rate=5.0))
    remeasured = SETTINGS.handing_over(Handover("light>heavy", "", (0.0, 0.2, 1.0), (0.0, 0.5, 1.0)))

    again = observed_demand(PlanInput(2.0, (), (demand,)), remeasured, before)

    assert (again.curve, again.rate) == (FollowedCurve(remeasured.deferral), 5.0)


def test_surges_cover_chance_jump_and_highest_rate() -> None:
    """Chance adds a fifth. A jump reaches three times the rate, or the highest known rate."""
    calm, after_a_peak = DemandForecast(rate=10.0, highest=10.0), DemandForecast(rate=10.0, highest=50.0)

    assert calm.surges(10.0) == {NEAR: pytest.approx(2.0), FAR: pytest.approx(18.0)}
    assert after_a_peak.surges(10.0) == {NEAR: pytest.approx(2.0), FAR: pytest.approx(38.0)}
    assert calm.surges(40.0) == {NEAR: pytest.approx(8.0), FAR: 0.0}


def test_surges_exclude_requests_that_can_wait() -> None:
    """The surge is two a second by chance and eighteen by a jump."""
    calm = DemandForecast(rate=10.0, highest=10.0)

    assert calm.surges(10.0, borne=0.5) == {NEAR: pytest.approx(1.5), FAR: pytest.approx(18.0)}
    assert calm.surges(10.0, borne=5.0) == {NEAR: 0.0, FAR: pytest.approx(15.0)}


def test_forecast_highest_rate_halves_in_five_minutes() -> None:
    after = look(300.0, ModelDemand("heavy", 1.0), before=DemandForecast(rate=1.0, highest=40.0))

    assert after.highest == pytest.approx(20.0)
    assert look(5.0, ModelDemand("heavy", 80.0), before=DemandForecast(rate=80.0, highest=40.0)).highest == 80.0


def test_forecast_model_of_one_step_reports_no_images() -> None:
    """The light model cannot start from an image: all reports are of the heavy model's images."""
    one_step = AllocationProfile("light", "", 1, 1.0, 0, step_count=1)
    seen = (
        ModelDemand("light", 5.0, starts=(StartShare(0, 90, NOISE, 1),)),
        ModelDemand("heavy", 5.0, starts=(StartShare(0, 5, NOISE, 50), StartShare(25, 5, IMAGE, 50))),
    )

    there = PlanInput(0.0, (), seen, (one_step,))

    assert observed_demand(there, SETTINGS, None).image_share == pytest.approx(0.5)
    assert as_planned_for(there, SETTINGS, DemandForecast(image_share=0.5)).image_share == 0.0
    plain = PlanInput(0.0, (), seen)
    assert observed_demand(plain, SETTINGS, None).image_share == pytest.approx(0.05)
    assert as_planned_for(plain, SETTINGS, DemandForecast(image_share=0.5)).image_share == 0.5


def test_forecast_first_request_sets_shares() -> None:
    first = look(0.0, ModelDemand("heavy", 5.0, starts=(StartShare(10, 1, LATENT, 50),)))

    assert (first.latent_share, first.image_share, first.latent_saved) == (1.0, 0.0, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("step_count", "saved", "starts"), [(4, 0.5, True), (4, 0.1, False), (4, 0.2, True), (0, 0.0, True)]
)
def test_starts_from_images_needs_a_saved_step(step_count: int, saved: float, starts: bool) -> None:
    """A donor that saves 25, 5 or 10 of fifty steps saves 2, 0.4 or 0.8 of four."""
    profile = AllocationProfile("light", "", 1, 1.0, 0, step_count=step_count)

    assert starts_from_images(PlanInput(0.0, (), (), (profile,)), SETTINGS, "light", saved) is starts
