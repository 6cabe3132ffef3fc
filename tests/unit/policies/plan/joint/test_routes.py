"""Build routes of the joint problem from profiles, f(t) and qualities: cost and worth of each."""

from dataclasses import replace

import pytest

from pentimento.domain.fleet import Capability, ModelCost, Replica, ReplicaKind
from pentimento.domain.models import Handover
from pentimento.policies.plan.costs import BatchCost
from pentimento.policies.plan.entry import IMAGE, LATENT, NOISE
from pentimento.policies.plan.followed_curve import FollowedCurve
from pentimento.policies.plan.inputs import AllocationProfile, PlanInput, ReplicaView
from pentimento.policies.plan.joint.forecast import DemandForecast
from pentimento.policies.plan.joint.problem import Component, PlannedRoute, Use
from pentimento.policies.plan.joint.routes import components_of, kind_of, kinds_of, quickest_routes, routes_of
from pentimento.policies.plan.settings import DeferralCurve, ModelQuality, ServingSettings

QUALITIES = (ModelQuality("heavy", 1.0, reuse=0.9), ModelQuality("light", 0.8, 0.2, 0.95))
SETTINGS = ServingSettings(heavy="heavy", light="light", discriminator_s=0.5, qualities=QUALITIES)
# A batch takes ten seconds, two besides its steps; the light model has no profile.
PROFILES = (AllocationProfile("heavy", "", 1, 10.0, 0, fixed_s=2.0),)
COMPONENTS = (Component("heavy", {}), Component("light", {}))
DEMAND = DemandForecast(latent_saved=0.25, image_saved=0.5)


def worker(name: str, device: str = "", memory_bytes: int = 0, resident: str = "heavy") -> Replica:
    kind, models = ReplicaKind.UNET_WORKER, ("heavy", "light")
    return Replica(name, kind, "sim:1", 1, "", device, memory_bytes, models, (resident,))


def context(*workers: Replica, profiles: tuple[AllocationProfile, ...] = PROFILES) -> PlanInput:
    return PlanInput(0.0, tuple(ReplicaView(one) for one in workers), profiles=profiles)


def routes(
    settings: ServingSettings = SETTINGS, names: tuple[str, ...] = ("heavy", "light")
) -> dict[str, PlannedRoute]:
    there = [component for component in COMPONENTS if component.name in names]
    return {planned.name: planned for planned in routes_of(context(), settings, there, DEMAND)}


def test_routes_cover_models_starts_and_nine_thresholds() -> None:
    alone = ["noise:heavy", "latent:heavy", "image:heavy", "noise:light", "image:light"]
    cascades = [f"noise:light>heavy@{number}" for number in range(1, 10)]

    assert sorted(routes()) == sorted(alone + cascades)


@pytest.mark.parametrize(
    ("name", "start", "work", "quality"),
    [
        ("noise:heavy", NOISE, 1.0, 1.0),
        ("latent:heavy", LATENT, 0.8, 0.9),  # two seconds and three quarters of eight
        ("image:heavy", IMAGE, 0.6, 0.9),
        ("noise:light", NOISE, 1.0, 0.8),
        ("image:light", IMAGE, 0.5, 0.8 * 0.95),  # without a profile all that is not saved
    ],
)
def test_routes_alone_do_unsaved_work(name: str, start: str, work: float, quality: float) -> None:
    planned = routes()[name]
    (use,) = planned.uses

    assert (planned.start, planned.models, planned.threshold) == (start, (use.component,), 0.0)
    assert (use.work, use.path) == (pytest.approx(work), pytest.approx(work))
    assert planned.quality == pytest.approx(quality)


@pytest.mark.parametrize(("number", "deferred"), [(1, 0.1), (5, 0.5), (9, 0.9)])
def test_routes_cascade_keeps_best_light_images(number: int, deferred: float) -> None:
    """Light images that are not deferred are better than average by at most half of the spread."""
    stays = 0.8 + 0.2 * deferred / 2.0
    plain = routes()[f"noise:light>heavy@{number}"]

    assert (plain.models, plain.start) == (("light", "heavy"), NOISE)
    assert plain.threshold == pytest.approx(deferred)
    assert plain.uses == (Use("light", 1.0, 1.0), Use("heavy", deferred, 1.0))
    assert plain.quality == pytest.approx((1.0 - deferred) * stays + deferred)


def test_routes_registered_pair_starts_from_light_image() -> None:
    """A batch takes ten seconds, two besides its steps; the heavy model skips 0.4 of its steps."""
    handover = Handover("light>heavy", "sha256:d", (0.0, 1.0), (0.0, 1.0), reuse_share=0.4)

    found = routes(SETTINGS.handing_over(handover))

    plain = found["noise:light>heavy@5"]
    assert plain.uses[1].work == pytest.approx(0.5 * (2.0 + 0.6 * 8.0) / 10.0)
    assert plain.handover == handover
    assert found["noise:heavy"] == routes()["noise:heavy"]


def test_components_light_model_waits_for_score() -> None:
    measured = (
        *PROFILES,
        AllocationProfile("light", "", 1, 1.0, 0),
        AllocationProfile("light>heavy", "cpu", 1, 0.25, 0),
    )
    there = context(worker("w1"), profiles=measured)

    found, _ = components_of(there, replace(SETTINGS, discriminator_s=0.0), kinds_of(there))

    assert {component.name: component.wait_s for component in found} == {"heavy": 0.0, "light": 0.25}


def test_routes_thresholds_follow_observed_curve() -> None:
    """Half of the light images are below 0.05, and the others as in the profile: 0.9 are below 0.8."""
    demand = replace(DEMAND, curve=DEMAND.curve.after((50, *(0,) * 19)))
    found = {one.name: one for one in routes_of(context(), SETTINGS, COMPONENTS, demand)}

    assert found["noise:light>heavy@9"].threshold == pytest.approx(0.8)


def thinned_routes(settings: ServingSettings = SETTINGS) -> dict[str, PlannedRoute]:
    """Return routes where two fifths of the heavy model's steps may be left out, with a tenth of its quality."""
    demand = replace(DEMAND, spare_share=0.4, lost_share=0.1)
    return {one.name: one for one in routes_of(context(), settings, COMPONENTS, demand) if one.left_out}


def test_routes_thinned_ways_take_less_heavy_work() -> None:
    cascades = [f"noise:light>heavy@{number} thinned" for number in range(1, 10)]
    thinned, whole = thinned_routes(), routes()["noise:light>heavy@5"]

    assert sorted(thinned) == sorted(["noise:heavy thinned", *cascades])
    alone, cascade = thinned["noise:heavy thinned"], thinned["noise:light>heavy@5 thinned"]
    assert (alone.uses, alone.quality) == ((Use("heavy", 0.6, 1.0),), 0.9)
    assert cascade.uses == (whole.uses[0], Use("heavy", pytest.approx(0.5 * 0.6), 1.0))
    assert cascade.quality == pytest.approx(whole.quality - 0.5 * 0.1)
    assert (cascade.models, cascade.threshold) == (("light", "heavy"), whole.threshold)
    assert {one.left_out for one in thinned.values()} == {0.4}


def test_routes_start_from_light_image_is_not_thinned() -> None:
    handover = Handover("light>heavy", "", (0.0, 1.0), (0.0, 1.0), reuse_share=0.25)

    thinned = thinned_routes(SETTINGS.handing_over(handover))
    assert not any(len(one.models) > 1 for one in thinned.values())


def test_routes_hits_as_noise_are_not_thinned() -> None:
    """A quarter of image hits start from noise: the light model has too few steps."""
    few = replace(PROFILES[0], model="light", step_count=1)
    demand = replace(DEMAND, image_share=0.25, spare_share=0.4)
    found = routes_of(context(profiles=(*PROFILES, few)), SETTINGS, COMPONENTS, demand)

    (alone,) = (one for one in found if one.name == "noise:heavy thinned")
    assert alone.left_out == pytest.approx(0.3)


@pytest.mark.parametrize("spare_share", [0.0, 0.02])
def test_routes_tiny_spare_share_is_ignored(spare_share: float) -> None:
    demand = replace(DEMAND, spare_share=spare_share, lost_share=0.1)

    assert not any(one.left_out for one in routes_of(context(), SETTINGS, COMPONENTS, demand))


def test_routes_zero_threshold_is_no_cascade() -> None:
    """Three in ten have a confidence of 0."""
    curve = DeferralCurve((0.0, 0.0, 1.0), (0.0, 0.3, 1.0))

    demand = replace(DEMAND, curve=FollowedCurve(curve))

    found = [one.name for one in routes_of(context(), SETTINGS, COMPONENTS, demand)]

    assert [name for name in found if name.startswith("noise:light>")] == [
        f"noise:light>heavy@{number}" for number in range(4, 10)
    ]


def test_routes_small_models_have_no_cascade() -> None:
    there = (*COMPONENTS, Component("small", {}))
    settings = replace(SETTINGS, small=("small", "light"))

    found = {one.name for one in routes_of(context(), settings, there, DEMAND)}

    assert {"image:small", "image:light", "noise:small"} <= found
    assert not {name for name in found if name.startswith(("image:small>", "image:light>", "noise:small>"))}


def test_routes_without_heavy_model_use_best_small() -> None:
    found = routes(names=("light",))

    assert sorted(found) == ["image:light", "latent:light", "noise:light"]
    assert found["latent:light"].uses == (Use("light", 1.0, 1.0),)


@pytest.mark.parametrize("there", [COMPONENTS, COMPONENTS[:1], COMPONENTS[1:]])
def test_routes_are_listed_once(there: tuple[Component, ...]) -> None:
    """A route listed twice would lose the rate of one entry."""
    names = [route.name for route in routes_of(context(), SETTINGS, there, DEMAND)]

    assert len(names) == len(set(names))


def test_routes_without_light_model_use_heavy() -> None:
    assert sorted(routes(names=("heavy",))) == ["image:heavy", "latent:heavy", "noise:heavy"]


def test_kinds_group_equal_devices_and_models() -> None:
    one, other, small = worker("b"), worker("a", resident="light"), worker("c", "small")

    assert kind_of(one) == "|heavy|light"
    assert kinds_of(context(one, other, small)) == {"|heavy|light": [other, one], "small|heavy|light": [small]}


def costs_of(found: list[Component]) -> dict[str, dict[str, tuple[BatchCost, ...]]]:
    return {component.name: dict(component.costs) for component in found}


def test_last_loads_of_workers_replace_profiles_load() -> None:
    profiles = (AllocationProfile("heavy", "", 1, 2.0, 0, load_s=4.0),)
    views = (worker("a"), worker("b"))
    slow, quick = (
        replace(one, costs=(ModelCost("heavy", ((1, 2.0),), load_s=load_s),))
        for one, load_s in zip(views, (6.0, 1.0), strict=True)
    )
    asked = [context(*views, profiles=profiles), context(slow, quick, profiles=profiles)]

    assert [components_of(one, SETTINGS, kinds_of(one))[0][0].load_s for one in asked] == [4.0, 3.5]


def test_components_costs_are_by_kind_of_device() -> None:
    """Costs of any device count unless the device's own kind has slower ones."""
    there = (
        AllocationProfile("heavy", "", 2, 3.0, 0, load_s=4.0, finish_s=0.25),
        AllocationProfile("heavy", "small", 1, 8.0, 0, load_s=9.0, finish_s=0.125),
        AllocationProfile("heavy", "", 1, 2.0, 0),
        AllocationProfile("heavy", "", 3, 4.0, 0),  # a batch size that no pool uses
        AllocationProfile("light", "", 1, 0.5, 0, finish_s=0.0625),
    )
    asked = context(worker("a"), worker("b", "small"), profiles=there)

    found, notes = components_of(asked, SETTINGS, kinds_of(asked))

    big, small = "|heavy|light", "small|heavy|light"
    assert costs_of(found) == {
        "heavy": {
            big: (BatchCost(1, 2.0, 2.0), BatchCost(2, 3.0, 3.0)),
            small: (BatchCost(1, 8.0, 8.0), BatchCost(2, 3.0, 3.0)),
        },
        "light": {big: (BatchCost(1, 0.5, 0.5),), small: (BatchCost(1, 0.5, 0.5),)},
    }
    assert [(one.load_s, one.wait_s) for one in found] == [(9.0, 0.25), (0.0, 0.5625)]
    assert [(one.load_steps(big), one.load_steps(small)) for one in found] == [
        ([], []),
        ([(0.0, 1)], [(0.0, 1)]),
    ]
    assert notes == []


@pytest.mark.parametrize(
    ("steps", "size", "wait_s"), [(50, 4, 1.0), (50, 1, 4.0), (1, 4, 4.0), (2, 4, 2.0), (0, 4, 4.0)]
)
def test_components_step_batching_waits_half_a_place(steps: int, size: int, wait_s: float) -> None:
    """A batch takes eight seconds: of four images one ends every two seconds, later with fewer steps."""
    there = (AllocationProfile("heavy", "", size, 8.0, 0, step_count=steps),)
    joins = replace(worker("a"), capabilities=frozenset({Capability.STEP_BATCHING}))
    asked = context(joins, profiles=there)

    found, _ = components_of(asked, SETTINGS, kinds_of(asked))

    assert costs_of(found) == {"heavy": {"|heavy|light": (BatchCost(size, 8.0, wait_s),)}}


def test_components_mixed_batching_waits_whole_batch() -> None:
    there = (AllocationProfile("heavy", "", 4, 8.0, 0, step_count=50),)
    joins = replace(worker("a"), capabilities=frozenset({Capability.STEP_BATCHING}))
    asked = context(joins, worker("b"), profiles=there)

    found, _ = components_of(asked, SETTINGS, kinds_of(asked))

    assert costs_of(found) == {"heavy": {"|heavy|light": (BatchCost(4, 8.0, 8.0),)}}


def test_components_unwanted_sizes_use_smallest() -> None:
    there = tuple(AllocationProfile("heavy", "", size, float(size), 0) for size in (5, 3))
    asked = context(worker("a"), profiles=there)

    found, _ = components_of(asked, SETTINGS, kinds_of(asked))

    assert costs_of(found) == {"heavy": {"|heavy|light": (BatchCost(3, 3.0, 3.0),)}}


@pytest.mark.parametrize(("memory_bytes", "fits"), [(0, True), (7, False), (8, True)])
def test_components_model_must_fit_least_memory(memory_bytes: int, fits: bool) -> None:
    there = (AllocationProfile("heavy", "", 1, 1.0, 8), AllocationProfile("light", "", 1, 1.0, 7))
    asked = context(worker("a", "gpu", 8), worker("b", "gpu", memory_bytes), profiles=there)

    found, notes = components_of(asked, SETTINGS, kinds_of(asked))

    assert [one.name for one in found] == (["heavy", "light"] if fits else ["light"])
    assert notes == ([] if fits else ["heavy is not planned on gpu: it does not fit into 7 bytes"])


def test_components_model_unknown_to_kind_has_no_note() -> None:
    alone = replace(worker("a"), available_models=("heavy",))
    asked = context(alone)

    found, notes = components_of(asked, SETTINGS, kinds_of(asked))

    assert ([one.name for one in found], notes) == (["heavy"], [])


ONE_STEP = (*PROFILES, AllocationProfile("light", "", 1, 1.0, 0, step_count=1))


def test_routes_hits_without_refinement_are_heavy_savings() -> None:
    """Half of the requests are image hits with six tenths of the work; the light model generates them as from noise."""
    demand = replace(DEMAND, image_share=0.5)
    found = {one.name: one for one in routes_of(context(profiles=ONE_STEP), SETTINGS, COMPONENTS, demand)}

    assert sorted(name for name in found if ">" not in name) == [
        "image:light",
        "latent:heavy",
        "noise:heavy",
        "noise:light",
    ]
    assert found["noise:heavy"].uses == (Use("heavy", pytest.approx(0.8), pytest.approx(0.8)),)
    assert found["image:light"].uses == (Use("light", 1.0, 1.0),)
    assert found["noise:light>heavy@5"].uses == (Use("light", 1.0, 1.0), Use("heavy", pytest.approx(0.4), 1.0))
    assert not any(name.startswith("image:light>") for name in found)
    alone = routes_of(context(profiles=ONE_STEP), SETTINGS, COMPONENTS[:1], demand)
    assert "image:heavy" in {one.name for one in alone}


def quick(name: str, *costs: tuple[int, float]) -> Component:
    return Component(name, {"gpu": tuple(BatchCost(*cost) for cost in costs)})


def test_routes_rooms_use_quickest_light_model() -> None:
    heavy, light = quick("heavy", (1, 1.0), (4, 2.0)), quick("light", (1, 0.6))
    found = {one.name: one for one in routes_of(context(), SETTINGS, (heavy, light), DEMAND)}
    slower = {one.name for one in routes_of(context(), SETTINGS, (quick("heavy", (4, 2.0)), light), DEMAND)}

    # Two a second by the heavy model in batches of four are more than one and two thirds.
    assert not any("surge" in name for name in (*found, *slower))
    quicker = {one.name: one for one in routes_of(context(), SETTINGS, (heavy, quick("light", (1, 0.4))), DEMAND)}
    rooms = {name: one for name, one in quicker.items() if "surge" in name}
    assert sorted(rooms) == ["far surge:light", "near surge:light"]
    for name, planned in rooms.items():
        plain = quicker["noise:light"]
        assert (planned.models, planned.uses) == (("light",), plain.uses)
        assert (planned.start, planned.quality) == (name.partition(":")[0], plain.quality)


def test_quickest_routes_take_least_device_time() -> None:
    components = (quick("a", (1, 1.0), (4, 2.0)), quick("b", (1, 0.8)), Component("never", {}))
    whole, resumed = (
        PlannedRoute("whole", NOISE, (Use("a", 1.0),), 1.0),
        PlannedRoute("hit", LATENT, (Use("a", 0.5),), 1.0),
    )
    other = PlannedRoute("other", NOISE, (Use("b", 0.5),), 0.5)
    both = PlannedRoute("both", NOISE, (Use("a", 0.1), Use("b", 0.1)), 0.9)
    nobody = PlannedRoute("nobody", IMAGE, (Use("never", 1.0),), 1.0)

    assert quickest_routes(components, (whole, resumed, other, both, nobody)) == {NOISE: other, LATENT: resumed}
