"""Every RPC of every contract, called by nobody, user, service and admin, is answered as its contract declares."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from pentimento.auth.v1 import auth_pb2
from pentimento.domain.identity import Role
from pentimento.rpc import RpcServer, RpcServerSettings, new_token, token_entry
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import RpcChannelSettings

ROOT = Path(__file__).resolve().parents[3]
DESCRIPTOR_SET = ROOT / "protos" / "pentimento.binpb"
ROLES = {
    "user": auth_pb2.ROLE_USER,
    "service": auth_pb2.ROLE_SERVICE,
    "admin": auth_pb2.ROLE_ADMIN,
}


def load_contracts() -> list[ServiceDescriptor]:
    """Every service of the committed descriptor set, from the default pool, as servers see it."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes())
    pool = descriptor_pool.Default()
    for file in files.file:
        if file.name.startswith("pentimento/"):
            __import__(file.name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return [pool.FindServiceByName(f"{file.package}.{service.name}") for file in files.file for service in file.service]


SERVICES = load_contracts()
METHODS = [method for service in SERVICES for method in service.methods]


def declared(method: MethodDescriptor) -> set[int]:
    return set(method.GetOptions().Extensions[auth_pb2.allowed_roles])


def expected(method: MethodDescriptor, caller: str) -> grpc.StatusCode:
    if caller == "nobody":
        return grpc.StatusCode.UNAUTHENTICATED
    return grpc.StatusCode.OK if ROLES[caller] in declared(method) else grpc.StatusCode.PERMISSION_DENIED


def empty_handler(method: MethodDescriptor) -> grpc.RpcMethodHandler:
    """Answers every request with one empty message."""
    request = message_factory.GetMessageClass(method.input_type)
    response = message_factory.GetMessageClass(method.output_type)

    async def answer(_request: object, _context: object) -> Any:
        return response()

    async def stream(_request: object, _context: object) -> Any:
        yield response()

    make = getattr(grpc, f"{form_of(method)}_rpc_method_handler")
    behaviour = stream if method.server_streaming else answer
    return make(behaviour, request.FromString, response.SerializeToString)


def form_of(method: MethodDescriptor) -> str:
    forms = ("stream" if streaming else "unary" for streaming in (method.client_streaming, method.server_streaming))
    return "_".join(forms)


def adder(service: ServiceDescriptor) -> Callable[[object, Any], None]:
    handlers = {method.name: empty_handler(method) for method in service.methods}
    return lambda servicer, server: server.add_registered_method_handlers(service.full_name, handlers)


async def call(channel: grpc.aio.Channel, method: MethodDescriptor) -> grpc.StatusCode:
    """The status of one call with an empty request, or with no request where a stream is sent.

    grpc.aio reports INTERNAL of itself when it is refused while it still writes.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    callable_ = getattr(channel, form_of(method))(path)
    made = callable_(iter(()) if method.client_streaming else b"", timeout=10)
    try:
        if method.server_streaming:
            async for _ in made:
                pass
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name.removeprefix("pentimento."))
def test_every_rpc_declares_who_may_call_it(method: MethodDescriptor) -> None:
    assert declared(method) - {auth_pb2.ROLE_UNSPECIFIED}


async def test_every_rpc_is_answered_as_declared_to_each_kind_of_caller(tmp_path: Path, socket_path: Path) -> None:
    tokens = {name: new_token() for name in ROLES}
    file = tmp_path / "tokens.toml"
    file.write_text("".join(token_entry(token, "acme", frozenset({Role(name)})) for name, token in tokens.items()))
    server = RpcServer(RpcServerSettings(listen=(f"unix:{socket_path}",), token_file=file), "all")
    for service in SERVICES:
        server.add(adder(service), None, service.full_name)
    await server.start()
    try:
        answers = {}
        for caller in ("nobody", *ROLES):
            async with open_channel(f"unix:{socket_path}", RpcChannelSettings(), tokens.get(caller)) as channel:
                codes = await asyncio.gather(*(call(channel, method) for method in METHODS))
            answers |= {(method.full_name, caller): code for method, code in zip(METHODS, codes, strict=True)}
    finally:
        await server.stop()

    assert answers == {
        (method.full_name, caller): expected(method, caller) for method in METHODS for caller in ("nobody", *ROLES)
    }


async def test_an_rpc_whose_contract_names_no_role_is_closed_to_all(tmp_path: Path, socket_path: Path) -> None:
    token = new_token()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "acme", frozenset({Role.USER, Role.SERVICE, Role.ADMIN})))
    method = undeclared_contract().methods[0]
    server = RpcServer(RpcServerSettings(listen=(f"unix:{socket_path}",), token_file=file), "undeclared")
    server.add(adder(method.containing_service), None, method.containing_service.full_name)
    await server.start()
    try:
        async with open_channel(f"unix:{socket_path}", RpcChannelSettings(), token) as channel:
            code = await call(channel, method)
    finally:
        await server.stop()

    assert code is grpc.StatusCode.PERMISSION_DENIED


def undeclared_contract() -> ServiceDescriptor:
    """A service whose one method has no `allowed_roles`."""
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto(name="undeclared.proto", package="tests.undeclared", syntax="proto3")
    file.message_type.add(name="Empty")
    service = file.service.add(name="ForgottenService")
    service.method.add(name="Do", input_type=".tests.undeclared.Empty", output_type=".tests.undeclared.Empty")
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName("tests.undeclared.ForgottenService")
