"""Test the components that a prefetch loads, and the requests' remaining waits."""

from lab.studies.component_log import SimulatedTier
from lab.studies.prefetch import HourlyBandit, HourlyTogether, hours_of, replay_with_prefetch
from lab.workloads.components import ComponentUse
from pentimento.domain.components import Loadable
from pentimento.policies.components import Utility

MODEL, OTHER = Loadable("model", 10, 20.0), Loadable("other", 11, 20.0)
OFTEN, SELDOM, ELSEWHERE = (Loadable(name, 1, 5.0) for name in ("often", "seldom", "elsewhere"))


def use(hour: float, *components: Loadable) -> ComponentUse:
    return ComponentUse(hour * 3600.0, components)


def test_together_chooses_loras_of_held_models_above_the_threshold() -> None:
    prefetch = HourlyTogether(hours=1, threshold=0.3, most=8)
    prefetch.learn([*[use(0.0, MODEL, OFTEN)] * 4, use(0.0, MODEL, SELDOM), use(0.0, OTHER, ELSEWHERE)])

    assert prefetch.choose({"model"}) == [OFTEN]
    assert prefetch.choose({"model", "often", "other"}) == [ELSEWHERE]
    prefetch.learn([use(1.0, MODEL)])
    assert prefetch.choose({"model"}) == []


def test_bandit_counts_tries_and_uses_of_chosen_components() -> None:
    names = [Loadable(f"c{rank:02d}", 1, 1.0) for rank in range(20)]
    hour = [use(0.0, one) for rank, one in enumerate(names) for _ in range(20 - rank)]
    bandit = HourlyBandit(most=1)
    bandit.learn(hour)

    # Ranks 1 to 5 of 20 components are warm.
    assert bandit.choose(()) == [names[1]]
    bandit.learn([use(1.0, names[1])])
    assert bandit.tried == bandit.used == {"c01": 1}
    assert bandit.choose({"c01"}) == [names[2]]


def test_replay_waits_for_no_prefetched_component() -> None:
    # The tier has room for the model and one LoRA: hour 1 displaces the LoRA, hour 3 finds it again.
    hours = hours_of([use(0.0, MODEL, OFTEN), use(1.0, OTHER), use(2.0, MODEL), use(3.0, MODEL, OFTEN)])
    alone, _ = replay_with_prefetch(hours, SimulatedTier(Utility(), 11), HourlyTogether(hours=0))

    waited, ahead = replay_with_prefetch(hours, SimulatedTier(Utility(), 11), HourlyTogether())

    assert [one.seconds for one in alone] == [25.0, 20.0, 20.0, 5.0]
    assert [one.seconds for one in waited] == [25.0, 20.0, 20.0, 0.0]
    assert ahead.seconds == 5.0 and ahead.moved_bytes == 1
