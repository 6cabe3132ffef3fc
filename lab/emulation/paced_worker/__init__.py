"""A worker whose device is paced: the real engine and real streams over a model whose compute sleeps for profiled
times. Never a worker of a deployment."""
