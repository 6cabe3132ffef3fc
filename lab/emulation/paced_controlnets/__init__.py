"""A paced ControlNet service: real streams over ControlNets that sleep for profiled times. Not for deployments."""
