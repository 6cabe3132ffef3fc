"""Run the process of a service: its life from start to stop, its place in the fleet, its batches and its lease.

| module | what it does |
| --- | --- |
| `imports` | import large libraries quickly |
| `idle` | stay healthy without a model or device to serve |
| `process` | listen, prepare, serve until SIGTERM, finish running work, release resources |
| `fleet_member` | register with the controller, report to it, receive and save every newer plan |
| `credits` | wake watchers of free capacity, measure the busy share and the loop's lag |
| `lease` | be the active one of several processes over one ledger, or wait to be |
"""
