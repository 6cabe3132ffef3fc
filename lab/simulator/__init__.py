"""The simulator: the other interpreter of the dataplane's effects, in virtual time.

| module | what |
| --- | --- |
| `simulation` | the event loop, and how every effect is performed |
| `agenda` | what happens when |
| `fleet` | workers whose steps take time and nothing else |
| `cache`, `reuse` | a stateful cache over real embeddings, its selector and eviction the real ones; what policies use |
| `controller` | asks the policy's allocator for plans |
| `ledger` | what is known of a request, and what stays of it |
| `scenario`, `scenario_file` | what is simulated, as a value and as a TOML file |
"""

from lab.simulator.scenario import Scenario
from lab.simulator.simulation import Simulation

__all__ = ["Scenario", "Simulation"]
