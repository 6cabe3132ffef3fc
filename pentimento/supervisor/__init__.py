"""Run the services as local processes (`pentimento up`): start, restart and drain them in order, and leave none."""
