"""gRPC's server reflection under both of its names: version 1, which tools ask first, has the messages of v1alpha."""

from collections.abc import Sequence

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default
from google.protobuf.json_format import MessageToJson, Parse
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

V1ALPHA = reflection.SERVICE_NAME
V1 = V1ALPHA.replace("v1alpha", "v1")
add_to_server = reflection_pb2_grpc.add_ServerReflectionServicer_to_server


def make_servicer(names: Sequence[str]) -> reflection.aio.ReflectionServicer:
    """Return what answers under either name; `names` are those of the other services."""
    described = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(described)
    # By its answers a tool finds version 1 described, which no package brings along.
    Default().Add(Parse(MessageToJson(described).replace("v1alpha", "v1"), FileDescriptorProto()))
    return reflection.aio.ReflectionServicer((*names, V1, V1ALPHA))
