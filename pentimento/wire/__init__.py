"""Domain values to protobuf messages and back; tensors as bytes."""
