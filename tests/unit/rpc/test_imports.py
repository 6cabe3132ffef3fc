"""The import of the kit, which every process pays for, brings no numerics along."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "transformers", "diffusers", "sqlalchemy", "boto3", "google.api_core")


def test_the_kit_imports_nothing_heavy() -> None:
    script = f"import sys, pentimento.rpc; print([name for name in {HEAVY!r} if name in sys.modules])"

    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"
