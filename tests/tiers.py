"""The tiers of the tests: `make test` runs the first, `make test-rest` the second, `make test-all` both.

The first tier has units, contracts and services, without torch outside three folders, without servers of others and
without tests of 0.9 s or more.
"""

from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Folders and files of tests/ in the second tier. In others, a test with one of MARKS is in it too.
SECOND = {
    "compose",
    "e2e",
    "faults",
    "golden",
    "gpu",
    "lab",
    # Services with torch, and installations.
    "integration/chart",
    "integration/controller/test_signed_models.py",
    "integration/controller/test_stored_models.py",
    "integration/controlnet_svc",
    "integration/discriminator",
    "integration/embedder",
    "integration/frontdoor/test_stores.py",
    "integration/frontdoor/test_replay_real.py",
    "integration/frontdoor/test_thinning.py",
    "integration/installing",
    "integration/images",
    "integration/site",
    "integration/unet_worker",
    "integration/vectordb_gateway/test_scaled_stores.py",
    "integration/vectordb_gateway/test_replaced_encoder.py",
    "integration/vectordb_gateway/test_two_encoders.py",
    # Processes and builds of an index, a second or so each.
    "unit/stores/components/test_component_store.py",
    "contract/rpc/test_process.py",
    "contract/stores/test_index_rebuild.py",
    "integration/supervisor",
    "unit/rpc/test_kept_memory.py",
    # PostgreSQL, S3 and Qdrant alone.
    "contract/stores/test_postgresql_failover.py",
    "contract/stores/test_postgresql_ledger.py",
    "contract/stores/test_postgresql_pins.py",
    "contract/stores/test_presigned.py",
    "contract/stores/test_qdrant_server.py",
    "contract/stores/test_s3_objects.py",
    "contract/stores/test_s3_uploads.py",
    # Studies and training.
    "unit/benchmarks",
    "unit/zoo",
    # Units that import torch.
    "unit/controller/test_uploads.py",
    "unit/controlnet_svc",
    # Tests that compare with PEFT's layers.
    "unit/diffusion/loras/test_forms.py",
    "unit/discriminator",
    "unit/files/test_lora_headers.py",
    "unit/fuzz",
    "unit/monitoring",
    # Runs pip-audit.
    "unit/scripts/test_audit.py",
    "unit/tensors/test_device_memory.py",
    "unit/tensors/test_fallbacks.py",
    "unit/tensors/test_outgoing.py",
    "unit/tensors/test_transport.py",
    "unit/wire/test_tensors.py",
}
MARKS = ("slow", "server")

# A tier's slowest folders come first. The files that are dealt last are short, so that no process works alone for long.
RANKS = {
    "e2e": 0,
    "e2e/strangers": 1,
    "e2e/guarded": 2,
    "e2e/two_models": 2,
    "faults": 3,
    "integration": 4,
    "golden": 5,
    "unit/zoo": 6,
    "contract": 7,
    "unit/diffusion": 8,
}


@cache
def is_second(name: str) -> bool:
    """Return whether a folder or file, named from the repository's root, is in the second tier as a whole."""
    parts = name.split("/")[1:]
    return any("/".join(parts[:count]) in SECOND for count in range(1, len(parts) + 1))


@cache
def rank(name: str) -> int:
    """Return when the tests of a file are dealt, 0 for the first ones."""
    parts = name.split("/")[1:]
    return RANKS.get("/".join(parts[:2]), RANKS.get("".join(parts[:1]), len(RANKS)))


def tier_of(item: pytest.Item) -> str:
    """Return "first" or "second"."""
    is_marked = any(item.get_closest_marker(mark) for mark in MARKS)
    return "second" if is_marked or is_second(item.nodeid.partition("::")[0]) else "first"


def may_hold(path: Path, tier: str) -> bool:
    """Return whether a folder or file may have tests of a tier. It is not loaded otherwise."""
    if is_second(path.relative_to(ROOT).as_posix()):
        return tier == "second"
    if tier == "first" or path.is_dir():
        return True
    return any(f"mark.{mark}" in text_of(file) for file in (path, path.parent / "conftest.py") for mark in MARKS)


@cache
def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""
