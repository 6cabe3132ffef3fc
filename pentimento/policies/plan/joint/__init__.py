"""Plan by one allocation problem.

| module | contents |
| --- | --- |
| `policy` | the policy: dwell time, horizon, admission |
| `forecast`, `quality` | the demand to plan for; the estimated quality of light images and hits |
| `problem`, `routes` | the problem; its routes and components from profiles, f(t) and the backlog |
| `program`, `solver` | the problem as a linear program; mixed integer linear programs |
| `devices`, `layout` | devices and batch sizes by model; the plan from a solution |
"""
