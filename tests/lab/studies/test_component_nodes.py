"""Test MLoRA's dispatchers, which the report compares with dispatch by residency."""

from collections import Counter

import pytest

from lab.studies.component_log import SimulatedTier
from lab.studies.component_nodes import ByClass, ByResidency, ByScore, Dispatcher, Node, replay_on_nodes
from lab.workloads.components import ComponentUse
from pentimento.domain.components import Loadable
from pentimento.policies.components import Utility

MODEL = Loadable("model", 10, 4.0)


def use(name: str = "model", at_s: float = 0.0) -> ComponentUse:
    return ComponentUse(at_s, (Loadable(name, 10, 4.0),))


def nodes() -> list[Node]:
    """The first node holds the model and is busy for ten seconds, the second one has neither."""
    found = [Node(SimulatedTier(Utility(), 100)) for _ in range(2)]
    found[0].tier.serve(use())
    found[0].free_s = 10.0
    return found


# A load of 4 s costs 0.5 x 4 ÷ 20 = 0.1 by Eq. 4, a wait of 10 s 0.2 x 10 ÷ 20 + 0.3 = 0.4; with `busy=0`, equal.
@pytest.mark.parametrize(
    ("dispatch", "chosen"),
    [
        (ByScore(20.0), 1),
        (ByScore(20.0, queue=0.1, busy=0.0), 0),
        (ByResidency(), 1),
        (ByResidency(3.0), 0),
    ],
)
def test_dispatchers_weigh_queue_against_load(dispatch: Dispatcher, chosen: int) -> None:
    found = nodes()

    assert dispatch(found, use()) is found[chosen]


def test_classes_give_the_most_used_model_replicas_and_others_one_node() -> None:
    # One of twenty models is hot.
    uses = [use("hot" if number % 2 else f"cold-{number % 38}", 0.0) for number in range(760)]
    placed: dict[str, Counter[int]] = {}
    dispatch = ByClass()

    def noting(found: list[Node], one: ComponentUse) -> Node:
        node = dispatch(found, one)
        placed.setdefault(one.components[0].name, Counter())[id(node)] += 1
        return node

    replay_on_nodes(uses, noting, Utility, node_count=16, budget_bytes=1000, run_s=1.0)

    assert len(placed) == 20
    assert len(placed.pop("hot")) == 4
    assert {len(counts) for counts in placed.values()} == {1}
