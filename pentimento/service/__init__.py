"""What every service's process does alike: its life from start to stop, and its place in the fleet.

| module | what it does |
| --- | --- |
| `process` | listen, prepare, serve until asked to stop, finish what runs, let go |
| `fleet_member` | register with the controller and report to it |
"""
