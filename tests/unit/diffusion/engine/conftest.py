"""What tests of pairs share."""

import pytest

from pentimento.policies import latent_pairing


@pytest.fixture
def four_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures here have six steps."""
    monkeypatch.setattr(latent_pairing, "_TRIAL_STEPS", 4)
