"""The emulated device, behind a clock and timers: the simulator and emulated workers play the same one."""
