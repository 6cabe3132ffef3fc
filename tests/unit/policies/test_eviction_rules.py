"""Compare the scores of each eviction rule with values computed by hand."""

import math

import pytest

from pentimento.domain.access import AccessRecord
from pentimento.policies.eviction_rules import (
    AGED_WHERE_ALL_ADD,
    AGED_WHERE_MISSES_ADD,
    EVICTION_NAMES,
    AgedBenefit,
    LcbfuRule,
    eviction_rule,
)

# Ten ticks of memory: two of five items.
RULE = AgedBenefit(5, memory_share=2.0, density_weight=1.5, use_weight=0.5, beside_share=0.25)
RECORD = AccessRecord(20.0, 4, 3, 8)


def test_benefit_combines_steps_per_byte_faded_uses_and_last_use() -> None:
    record = RULE.used(RECORD, 18)
    uses = RECORD.faded_uses * math.exp(-1.0) + 1.0

    rank, place = RULE.rank(record)

    assert (record.use_count, record.used_tick, record.faded_uses) == (RECORD.use_count + 1, 18, pytest.approx(uses))
    assert rank == pytest.approx(1.8 + 1.5 * math.log(5.0) + 0.5 * math.log(uses))
    assert place == 3


def test_a_use_of_another_of_its_entry_counts_a_share_and_is_no_use() -> None:
    record = RULE.beside(RECORD, 18)

    assert record.use_count == RECORD.use_count
    assert (record.used_tick, record.faded_uses) == (18, pytest.approx(RECORD.faded_uses * math.exp(-1.0) + 0.25))
    assert AgedBenefit(5).beside(RECORD, 18) is RECORD


def test_an_item_without_bytes_counts_as_one_of_a_byte() -> None:
    nothing, one = (RULE.rank(AccessRecord(20.0, size_bytes, 3, 8)) for size_bytes in (0, 1))

    assert nothing == one


def test_aged_benefit_has_defaults() -> None:
    rule = AgedBenefit(7)

    assert (rule.memory_share, rule.density_weight, rule.use_weight, rule.beside_share) == (3.0, 1.5, 0.5, 0.0)
    assert rule.memory_ticks == 21.0
    assert LcbfuRule().first_frequency == 1.0
    assert LcbfuRule(0.5).rank(AccessRecord(20.0, 4, 3, 8)) == (10.0, 3)


def test_where_all_add_other_weights_are_best_than_where_misses_alone_do() -> None:
    assert AGED_WHERE_MISSES_ADD == {"memory_share": 3.0, "density_weight": 1.5, "use_weight": 0.5, "beside_share": 0.0}
    assert AGED_WHERE_ALL_ADD == {"memory_share": 5.0, "density_weight": 0.0, "use_weight": 0.25, "beside_share": 0.3}
    assert eviction_rule("aged", 9) == AgedBenefit(9, 3.0, 1.5, 0.5, 0.0)
    assert eviction_rule("aged", 9, hits_add=True) == AgedBenefit(9, 5.0, 0.0, 0.25, 0.3)


def test_every_rule_has_its_name() -> None:
    assert EVICTION_NAMES == ("fifo", "lru", "lfu", "lcbfu", "aged")
    assert {name: type(eviction_rule(name, 1)).__name__ for name in EVICTION_NAMES} == {
        "fifo": "FifoRule",
        "lru": "LruRule",
        "lfu": "LfuRule",
        "lcbfu": "LcbfuRule",
        "aged": "AgedBenefit",
    }
    with pytest.raises(ValueError, match="eviction must be one of fifo, lru, lfu, lcbfu, aged, got 'random'"):
        eviction_rule("random", 1)


@pytest.mark.parametrize(("capacity", "share"), [(0, 1.0), (1, 0.0), (1, -1.0)])
def test_a_memory_of_nothing_is_refused(capacity: int, share: float) -> None:
    with pytest.raises(ValueError, match="capacity_count must be at least 1 and memory_share above 0"):
        AgedBenefit(capacity, share)


def test_a_memory_of_one_tick_is_none_too_short() -> None:
    assert AgedBenefit(1, 1e-9).memory_ticks == 1e-9
