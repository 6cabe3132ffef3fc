"""Authorise callers by the roles of a contract."""

import pytest
from google.protobuf import descriptor_pb2

from pentimento.api.auth.v1 import auth_pb2
from pentimento.domain.errors import PermissionDenied, Unauthenticated
from pentimento.domain.tenants import Caller, Role
from pentimento.rpc.access import Access, access_of, authorise

USER = Caller("acme", frozenset({Role.USER, Role.ADMIN}))
SUITE = frozenset({Role.SERVICE, Role.ADMIN})


def test_one_allowed_role_is_enough() -> None:
    assert authorise(USER, SUITE, "/a.B/C") is USER


@pytest.mark.parametrize(
    ("allowed", "needed"), [(SUITE, "admin, service"), (frozenset(), "nobody")], ids=["others, in order", "none"]
)
def test_rejection_names_allowed_roles(allowed: frozenset[Role], needed: str) -> None:
    with pytest.raises(PermissionDenied) as refused:
        authorise(Caller("acme", frozenset({Role.USER})), allowed, "/a.B/C")

    assert (refused.value.reason, refused.value.message) == ("ROLE_NOT_ALLOWED", f"/a.B/C is for {needed}")
    assert refused.value.metadata == {"allowed_roles": needed}


def test_caller_without_token_is_rejected() -> None:
    with pytest.raises(Unauthenticated) as refused:
        authorise(None, SUITE, "/a.B/C")

    assert refused.value.reason == "TOKEN_REQUIRED"


def test_contract_options_set_roles_and_size_with_closed_defaults() -> None:
    options = descriptor_pb2.MethodOptions()
    silent = access_of(options)
    options.Extensions[auth_pb2.allowed_roles].append(auth_pb2.ROLE_USER)
    options.Extensions[auth_pb2.max_request_bytes] = 7

    assert silent == Access(frozenset(), 65_536)
    assert access_of(options) == Access(frozenset({Role.USER}), 7)


def test_a_role_that_this_build_does_not_know_opens_nothing() -> None:
    options = descriptor_pb2.MethodOptions()
    options.Extensions[auth_pb2.allowed_roles].append(99)

    assert access_of(options).roles == frozenset()
