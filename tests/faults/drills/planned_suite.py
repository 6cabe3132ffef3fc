"""Print the processes that a version of the suite plans for a state directory, as JSON: `planned_suite.py DIRECTORY`.

It is run with the code of that version first on PYTHONPATH, so that each version gets its own flags."""

import json
import sys
from pathlib import Path

import pentimento
from pentimento.supervisor.models import find_encoder, find_model, with_shipped
from pentimento.supervisor.state import StateDirectory
from pentimento.supervisor.suite import plan_suite
from pentimento.supervisor.suite_settings import SuiteSettings

state = StateDirectory(Path(sys.argv[1]))
state.make()
encoder = find_encoder("tiny-clip").path
settings = SuiteSettings(
    models=(find_model("tiny-heavy"),),
    encoder=encoder,
    copies=2,
    device="cpu",
    profiles=with_shipped((), encoder),
)
processes = [(one.name, one.module, one.address, one.arguments) for one in plan_suite(settings, state).processes]
print(json.dumps([pentimento.__file__, processes]))
