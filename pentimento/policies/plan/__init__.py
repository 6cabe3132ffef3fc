"""Plan the fleet: serving systems of the literature, in the code that serves live and simulates.

| module | contents |
| --- | --- |
| `inputs` | the input and the decision of a policy |
| `maker` | a whole plan from a decision, for controller and simulator |
| `demand` | reports added up to demand by model; averages |
| `entry` | a request's way through a plan |
| `registry` | a policy as one value, and all policies by name |
| `settings` | models, SLO and qualities; the deferral curve f(t) |
| `costs`, `placement` | shared by policies: costs by batch size, assignments of workers; one model on every device |
| `component_placement`, `residents` | ControlNets and LoRAs on replicas, by their uses; the problem |
| `joint/` | one allocation problem for every way to generate an image |
| `cascade`, `cascade_problem` | a cascade, DiffServe's or a registered one; its allocation problem |
| `mixture` | MoDM's global monitor |

This module imports nothing: a frontdoor follows plans and starts without a solver.
"""
