"""Domain values to protobuf messages and back: `x_to_proto(value)`, `x_from_proto(message)`.

A message that lacks what its domain value needs raises InvalidArgument naming the field; numbers are not judged here.
"""
