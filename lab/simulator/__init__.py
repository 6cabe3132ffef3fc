"""The simulator: perform the dataplane's effects in virtual time.

| module | content |
| --- | --- |
| `simulation` | the event loop, and how every effect is performed |
| `agenda` | future events by time |
| `fleet` | workers, reduced to the time of their steps |
| `scaling` | fleets of a changing size behind an autoscaler |
| `cache`, `reuse` | a stateful cache over real embeddings, with the real selector and eviction; reuse by policies |
| `controller` | asks the policy's allocator for plans |
| `ledger` | the state of a request, and its record |
| `scenario`, `scenario_file` | the simulated system, as a value and as a TOML file |
"""

from lab.simulator.scenario import Scenario
from lab.simulator.simulation import Simulation

__all__ = ["Scenario", "Simulation"]
