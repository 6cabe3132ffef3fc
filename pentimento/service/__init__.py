"""What every service's process does alike: its life from start to stop, its place in the fleet, and whose turn it is.

| module | what it does |
| --- | --- |
| `imports` | import large libraries quickly |
| `idle` | stay healthy without anything to serve |
| `process` | listen, prepare, serve until asked to stop, finish what runs, let go |
| `fleet_member` | register with the controller and report to it |
| `plan_follower` | receive every newer plan, save it, and begin with the saved one |
| `lease` | be the active one of several over one ledger, or wait to be |
"""
