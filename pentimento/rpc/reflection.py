"""Serve gRPC's reflection under both names: version 1, which tools try first, has the messages of v1alpha."""

from collections.abc import Sequence

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToJson, Parse
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

V1ALPHA = reflection.SERVICE_NAME
V1 = V1ALPHA.replace("v1alpha", "v1")
add_to_server = reflection_pb2_grpc.add_ServerReflectionServicer_to_server


def make_servicer(names: Sequence[str]) -> reflection.aio.ReflectionServicer:
    """Return a servicer for both names; `names` are those of the other services."""
    described = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(described)
    # Tools need version 1's description in the answers, and no package includes it.
    Default().Add(Parse(MessageToJson(described).replace("v1alpha", "v1"), FileDescriptorProto()))
    return reflection.aio.ReflectionServicer((*names, V1, V1ALPHA))
