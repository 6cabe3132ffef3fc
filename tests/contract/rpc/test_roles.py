"""Test that every RPC answers each caller (none, user, service, admin) as this table states.

The table is written by hand: a contract that opens an RPC, and a new RPC without a row, fail here.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from pentimento.api.auth.v1 import auth_pb2
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcServer, RpcServerSettings, new_token, token_entry
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import RpcChannelSettings

ROOT = Path(__file__).resolve().parents[3]
DESCRIPTOR_SET = ROOT / "protos" / "pentimento.binpb"
ROLES = {
    "user": auth_pb2.ROLE_USER,
    "service": auth_pb2.ROLE_SERVICE,
    "admin": auth_pb2.ROLE_ADMIN,
    "tenant-admin": auth_pb2.ROLE_TENANT_ADMIN,
}
CLIENTS, SUITE, SUITE_AND_OPERATORS = {"user", "admin"}, {"service"}, {"service", "admin"}
OPERATORS, TENANT_ADMINS = {"admin"}, {"tenant-admin"}
MAY_CALL = {
    "adapters.v1.AdapterRegistryService.AddLora": OPERATORS,
    "adapters.v1.AdapterRegistryService.ListLoras": SUITE_AND_OPERATORS,
    "adapters.v1.AdapterRegistryService.RemoveLora": OPERATORS,
    "components.v1.ComponentService.FetchComponent": SUITE,
    "controller.v1.ControllerService.Register": SUITE,
    "controller.v1.ControllerService.Report": SUITE,
    "controller.v1.ControllerService.Deregister": SUITE,
    "controller.v1.ControllerService.WatchPlan": SUITE_AND_OPERATORS,
    "controller.v1.ControllerService.FindComponents": SUITE,
    "controller.v1.ControllerService.GetFleet": SUITE_AND_OPERATORS,
    "controlnet.v1.ControlNetService.WatchCredits": SUITE,
    "controlnet.v1.ControlNetService.StreamResiduals": SUITE,
    "controlnet.v1.ControlNetService.Prefetch": SUITE_AND_OPERATORS,
    "controlnet.v1.ControlNetService.GetStatus": SUITE_AND_OPERATORS,
    "discriminator.v1.DiscriminatorService.Score": SUITE,
    "discriminator.v1.DiscriminatorService.Foresee": SUITE,
    "safety.v1.SafetyService.Check": SUITE,
    "discriminator.v1.DiscriminatorService.GetStatus": SUITE_AND_OPERATORS,
    "embedder.v1.EmbedderService.EmbedText": SUITE,
    "embedder.v1.EmbedderService.EmbedImage": SUITE,
    "embedder.v1.EmbedderService.GetInfo": SUITE_AND_OPERATORS,
    "frontdoor.v1.FrontdoorService.FindKey": SUITE,
    "frontdoor.v1.FrontdoorService.GetStatus": SUITE_AND_OPERATORS,
    "image.v1.ImageService.Generate": CLIENTS,
    "image.v1.ImageService.Cancel": CLIENTS,
    "image.v1.ImageService.GetRequest": CLIENTS,
    "image.v1.ImageService.Explain": CLIENTS,
    "image.v1.ImageService.Replay": CLIENTS,
    "image.v1.ImageService.Pin": CLIENTS,
    "image.v1.ImageService.Unpin": CLIENTS,
    "image.v1.ImageService.Submit": CLIENTS,
    "image.v1.ImageService.Attach": CLIENTS,
    "image.v1.ImageService.ListRequests": CLIENTS,
    "image.v1.ImageService.GetResultUrl": CLIENTS,
    "image.v1.ImageService.GetWebhookKey": CLIENTS,
    "image.v1.ImageService.FindCell": CLIENTS | SUITE | TENANT_ADMINS,
    "image.v1.ImageService.ListModels": CLIENTS,
    "models.v1.ModelRepositoryService.FindMissingFiles": OPERATORS,
    "models.v1.ModelRepositoryService.AddFile": OPERATORS,
    "models.v1.ModelRepositoryService.RegisterModel": OPERATORS,
    "models.v1.ModelRepositoryService.GetModel": SUITE_AND_OPERATORS,
    "models.v1.ModelRepositoryService.RemoveModel": OPERATORS,
    "models.v1.ModelRepositoryService.RegisterCascade": OPERATORS,
    "models.v1.ModelRepositoryService.RemoveCascade": OPERATORS,
    "models.v1.ModelRepositoryService.ListRegistered": SUITE_AND_OPERATORS,
    "tenants.v1.TenantService.CreateTenant": TENANT_ADMINS,
    "tenants.v1.TenantService.ListTenants": TENANT_ADMINS,
    "tenants.v1.TenantService.UpdateTenant": TENANT_ADMINS,
    "tenants.v1.TenantService.DeleteTenant": TENANT_ADMINS,
    "tenants.v1.TenantService.RestoreTenant": TENANT_ADMINS,
    "tenants.v1.TenantService.EraseTenant": TENANT_ADMINS,
    "tenants.v1.TenantService.ListErasures": TENANT_ADMINS,
    "tenants.v1.TenantService.CreateKey": TENANT_ADMINS,
    "tenants.v1.TenantService.ListKeys": TENANT_ADMINS,
    "tenants.v1.TenantService.RotateKey": TENANT_ADMINS,
    "tenants.v1.TenantService.RevokeKey": TENANT_ADMINS,
    "tenants.v1.TenantService.GetUsage": TENANT_ADMINS,
    "vectordb.v1.VectordbGatewayService.Lookup": SUITE,
    "vectordb.v1.VectordbGatewayService.ListNeighbours": SUITE,
    "vectordb.v1.VectordbGatewayService.Reserve": SUITE,
    "vectordb.v1.VectordbGatewayService.Commit": SUITE,
    "vectordb.v1.VectordbGatewayService.Release": SUITE,
    "vectordb.v1.VectordbGatewayService.ReportBadObject": SUITE,
    "vectordb.v1.VectordbGatewayService.ReportStart": SUITE,
    "vectordb.v1.VectordbGatewayService.PinObject": SUITE,
    "vectordb.v1.VectordbGatewayService.UnpinObjects": SUITE,
    "vectordb.v1.VectordbGatewayService.ForgetTenant": SUITE,
    "vectordb.v1.VectordbGatewayService.ReportQuality": SUITE,
    "vectordb.v1.VectordbGatewayService.GetReuseQuality": SUITE_AND_OPERATORS,
    "vectordb.v1.VectordbGatewayService.GetStatistics": SUITE_AND_OPERATORS,
    "worker.v1.UnetWorkerService.WatchCredits": SUITE,
    "worker.v1.UnetWorkerService.Execute": SUITE,
    # KEDA's contract has no roles: the controller serves it on a separate listener.
    "externalscaler.ExternalScaler.IsActive": set(),
    "externalscaler.ExternalScaler.StreamIsActive": set(),
    "externalscaler.ExternalScaler.GetMetricSpec": set(),
    "externalscaler.ExternalScaler.GetMetrics": set(),
    "externalscaler.ExternalScaler.StreamMetricSpec": set(),
    "worker.v1.UnetWorkerService.Attach": SUITE,
    "worker.v1.UnetWorkerService.CancelAttempt": SUITE,
    "worker.v1.UnetWorkerService.ThinAttempt": SUITE,
    "worker.v1.UnetWorkerService.Prefetch": SUITE_AND_OPERATORS,
    "worker.v1.UnetWorkerService.PredictHalf": SUITE,
    "worker.v1.UnetWorkerService.GetStatus": SUITE_AND_OPERATORS,
}


def load_contracts() -> list[ServiceDescriptor]:
    """Return every service of the committed descriptor set, from the default pool, as servers read it."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes())
    pool = descriptor_pool.Default()
    for file in files.file:
        if file.name.startswith("pentimento/"):
            __import__(file.name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return [pool.FindServiceByName(f"{file.package}.{service.name}") for file in files.file for service in file.service]


SERVICES = load_contracts()
METHODS = [method for service in SERVICES for method in service.methods]


def name_of(method: MethodDescriptor) -> str:
    return method.full_name.removeprefix("pentimento.api.")


def expected(name: str, caller: str) -> grpc.StatusCode:
    if caller == "nobody":
        return grpc.StatusCode.UNAUTHENTICATED
    return grpc.StatusCode.OK if caller in MAY_CALL[name] else grpc.StatusCode.PERMISSION_DENIED


def empty_handler(method: MethodDescriptor) -> grpc.RpcMethodHandler:
    """Answer every request with one empty message."""
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
    """Return the status of one call with an empty request, or with no request for a stream of requests.

    grpc.aio reports INTERNAL if the call is refused while it writes.
    """
    path = f"/{method.containing_service.full_name}/{method.name}"
    callable_ = getattr(channel, form_of(method))(path)
    made = callable_(iter(()) if method.client_streaming else b"", timeout=120)
    try:
        if method.server_streaming:
            async for _ in made:
                pass
        else:
            await made
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_every_contract_declares_roles_of_the_table() -> None:
    declared = {name_of(method): {*method.GetOptions().Extensions[auth_pb2.allowed_roles]} for method in METHODS}

    assert declared == {name: {ROLES[caller] for caller in callers} for name, callers in MAY_CALL.items()}


@pytest.mark.slow
async def test_every_rpc_answers_callers_of_the_table(tmp_path: Path, socket_path: Path) -> None:
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
            answers |= {(name_of(method), caller): code for method, code in zip(METHODS, codes, strict=True)}
    finally:
        await server.stop()

    assert answers == {(name, caller): expected(name, caller) for name in MAY_CALL for caller in ("nobody", *ROLES)}


async def test_rpc_without_roles_is_closed_to_all(tmp_path: Path, socket_path: Path) -> None:
    token = new_token()
    file = tmp_path / "tokens.toml"
    file.write_text(token_entry(token, "acme", frozenset({Role.USER, Role.SERVICE, Role.ADMIN, Role.TENANT_ADMIN})))
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
    """Return a service with one method, without `allowed_roles`."""
    pool = descriptor_pool.Default()
    file = descriptor_pb2.FileDescriptorProto(name="undeclared.proto", package="tests.undeclared", syntax="proto3")
    file.message_type.add(name="Empty")
    service = file.service.add(name="ForgottenService")
    service.method.add(name="Do", input_type=".tests.undeclared.Empty", output_type=".tests.undeclared.Empty")
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return pool.FindServiceByName("tests.undeclared.ForgottenService")
