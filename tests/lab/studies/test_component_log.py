"""Replay a log of components through a tier."""

from lab.studies.component_log import admits
from pentimento.domain.components import Loadable
from pentimento.policies.components import Utility


def component(name: str, memory_bytes: int = 10, load_s: float = 1.0) -> Loadable:
    return Loadable(name, memory_bytes, load_s)


def test_newcomer_of_less_worth_is_not_admitted() -> None:
    rule = Utility()
    popular, newcomer = component("popular", 20, 2.0), component("newcomer", 10, 1.5)
    for at, one in enumerate((popular, popular, newcomer)):
        rule.note_use(one, float(at))

    assert not admits(rule, newcomer, [popular], 2.0)
    rule.note_use(newcomer, 3600.0)
    assert admits(rule, newcomer, [popular], 3600.0)
