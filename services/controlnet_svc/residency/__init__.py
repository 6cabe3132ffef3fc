"""Which ControlNets there are, and which of them are on the device."""
