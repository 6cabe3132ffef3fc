"""Serving policies: systems of the literature, in the code that serves live and simulates.

| module | what |
| --- | --- |
| `policy` | a policy as one value, and the registry of them by name |
| `settings` | what they are configured with; the deferral curve f(t) |
| `cascade_problem`, `cascades` | DiffServe's problem and its allocator |
| `joint_problem` | one problem for every way to paint: models, cascades, hits, adapters, kinds of device |
| `joint` and `joint_demand`, `joint_routes`, `joint_plan`, `joint_sizes`, `joint_spare` | the policy that plans by it |
| `joint_program`, `joint_choices` | its linear program, and the pools that keep the SLO |
| `linear_program`, `branch_and_bound` | mixed integer linear programs, by HiGHS and by a search over its relaxations |
| `whole_rounding`, `worth_cuts` | what such a search rounds to, and what it need not solve |
| `mixture`, `pid` | MoDM's global monitor |
| `uniform` | one model everywhere |
| `one_left` | light or heavy alone where no worker can hold the other |
| `entry` | from a plan to the pools that a request goes through |
| `costs`, `demand`, `placement` | what allocators share: profiles, averages, which worker holds what |

Nothing is imported from here: the front door reads plans (`entry`) and starts without a solver.
"""
