"""Workloads: who asks for what and when, as values that a simulator, an emulated fleet and a live suite play alike.

`builders` and `production` make them, `files` keeps them, `readers` reads public logs, `times` has the processes.
"""

from pentimento.workloads.arrival import Arrival, Workload
from pentimento.workloads.builders import fluctuating, from_trace, poisson
from pentimento.workloads.content import Content, SloClass
from pentimento.workloads.files import load_workload, save_workload
from pentimento.workloads.production import from_production_log, production_mix
from pentimento.workloads.times import Segment

__all__ = [
    "Arrival",
    "Content",
    "Segment",
    "SloClass",
    "Workload",
    "fluctuating",
    "from_production_log",
    "from_trace",
    "load_workload",
    "poisson",
    "production_mix",
    "save_workload",
]
