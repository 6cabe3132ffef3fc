"""Test how `eviction_components` fits, scores and holds its targets."""

from benchmarks.eviction_components import OTHERS, OURS, Cell, cells_of, summary
from lab.workloads.components import ComponentUse, loadable
from pentimento.policies.components import Utility


def cell(ours: float, others: float) -> Cell:
    blocks = {one.name: [others * (1 + place % 3) for place in range(30)] for one in OTHERS}
    return Cell("log", 8, blocks | {"ours": [ours * (1 + place % 3) for place in range(30)]})


def test_summary_counts_cells_where_ours_loses() -> None:
    found = summary([cell(0.9, 1.0), cell(1.0, 1.0), cell(1.1, 1.0)])

    assert [figure.value for figure in found] == [1, 1]
    assert [figure.ok for figure in found] == [False, False]
    assert [figure.ok for figure in summary([cell(0.9, 1.0)])] == [True, True]


def test_fit_takes_parameter_with_fewest_loading_seconds() -> None:
    # "old" was used often and long ago: a rule that ages slowly keeps it, and loads the others again and again.
    old, *new = (loadable("model", name) for name in ("m1", "m2", "m3"))
    burst = [ComponentUse(float(at), (old,)) for at in range(50)]
    later = [ComponentUse(40_000.0 + 3_600.0 * at, (new[at % 2],)) for at in range(40)]
    size_gb = -(-(old.memory_bytes + max(one.memory_bytes for one in new)) // 1_000_000_000)

    rule = OURS.fitted([*burst, *later], size_gb)()

    assert isinstance(rule, Utility)
    for at in range(50):
        rule.note_use(old, float(at))
    rule.note_use(new[0], 40_000.0)
    assert rule.worth(new[0], 40_000.0) > rule.worth(old, 40_000.0)


def test_cells_score_the_second_half_in_blocks() -> None:
    one, other = loadable("lora", "l1"), loadable("lora", "l2")
    uses = [ComponentUse(float(at), (one,)) for at in range(200)] + [ComponentUse(200.0, (other,))] * 200

    cells = cells_of("log", uses)

    assert [len(cell.blocks["LRU"]) for cell in cells] == [2] * 4
    assert all(cell.total(name) == other.load_s for cell in cells for name in cell.blocks)
