"""Hold the replica's ControlNets, and decide which are on the device."""
