"""Record the zoo's models for emulated devices, which sleep for the recorded step times and return the recorded images,
and for the simulator, which only needs times and qualities.
"""
