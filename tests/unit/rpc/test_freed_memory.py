"""When freed memory is looked for: after a change that matters, once it is over."""

import pytest

from pentimento.rpc.freed_memory import MEBIBYTE, MovementWatch


@pytest.mark.parametrize(
    ("mebibytes", "looks"),
    [
        ([40, 40, 40], [False, False, False]),
        ([47, 47, 47], [False, False, False]),
        ([48, 48, 48], [False, True, False]),
        ([60, 80, 100, 100, 100], [False, False, False, True, False]),
        ([139, 139, 102, 102, 46, 46, 46], [False, True, False, True, False, True, False]),
        ([60, 40, 60, 40], [False, False, False, False]),
        ([60, 61, 62], [False, True, False]),
        ([60, 62, 64], [False, False, False]),
    ],
    ids=["steady", "little", "grown", "growing", "shrinking", "swinging", "nearly still", "still moving"],
)
def test_freed_memory_is_looked_for_when_the_process_moved_and_rests(mebibytes: list[int], looks: list[bool]) -> None:
    watch = MovementWatch(40 * MEBIBYTE)

    assert [watch.pays(held * MEBIBYTE) for held in mebibytes] == looks
