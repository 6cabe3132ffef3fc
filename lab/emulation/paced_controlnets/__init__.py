"""A ControlNet service whose device is paced: real streams over ControlNets whose compute sleeps for profiled times.
Never one of a deployment."""
