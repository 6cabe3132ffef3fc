"""Read plans and demand: the front door's side of a plan, and averages of demand.

| module | contents |
| --- | --- |
| `entry` | from a plan to the pools that a request goes through |
| `demand` | demand by model, averages |
| `unplanned` | models that no plan names, and why |
"""
