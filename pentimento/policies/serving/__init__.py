"""Read plans and demand: the front door's side of a plan, and averages of demand.

| module | contents |
| --- | --- |
| `entry` | from a plan to the pools that a request goes through |
| `demand_window` | demand by model, added up from reports |
| `demand` | the demand for a model, averages |
"""
