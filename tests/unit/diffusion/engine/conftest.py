"""Share fixtures of tests of pairs."""

import pytest

from pentimento.policies import latent_pairing


@pytest.fixture
def four_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten trials: images here have six steps."""
    monkeypatch.setattr(latent_pairing, "_TRIAL_STEPS", 4)
