"""Study and measure the suite: the simulator, workloads, runs and their reports, studies of prompt logs, fixtures."""
