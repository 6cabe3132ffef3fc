"""Recordings of the zoo's models for what stands in for them: emulated devices, which sleep for the time that a step
took and hand out pictures that were painted, and the simulator, which needs the times and the qualities alone."""
