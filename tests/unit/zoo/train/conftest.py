"""Share fixtures of trainings."""

from collections.abc import Callable, Iterator

import pytest
import torch

from zoo.train.loop import Part


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def losses_of_one_batch() -> Callable[[Part], list[float]]:
    """Return the losses of five steps on one batch."""

    def learn(part: Part) -> list[float]:
        optimiser = torch.optim.Adam(part.module.parameters(), lr=5e-3)
        losses = []
        for _ in range(5):
            loss, _ = part.loss(torch.Generator().manual_seed(5))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        return losses

    return learn
