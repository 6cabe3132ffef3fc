"""Pin the public surface: a change here is a change of the API."""

import subprocess
import sys

import pytest

import pentimento.sdk
from pentimento.domain import errors

PUBLIC = (
    "Aborted Accepted AskedControlNet AskedImagePrompt AskedLora AsyncClient CacheMode Cancelled Client Completed "
    "DeadlineExceeded FailedPrecondition GenerateEvent GeneratedImage ImageFailed ImageFormat ImageRequest "
    "ImageSet InitImage Internal InvalidArgument NotFound PentimentoError PermissionDenied Progress ReplayRequest "
    "RequestPage RequestQuery RequestState RequestStatus RequestSummary ResourceExhausted RetryPolicy Routed "
    "Unauthenticated Unavailable"
)


def test_public_names() -> None:
    assert pentimento.sdk.__all__ == PUBLIC.split()
    assert [name for name in pentimento.sdk.__all__ if not hasattr(pentimento.sdk, name)] == []


def test_every_error_of_the_catalogue_is_public() -> None:
    names = {kind.__name__ for kind in errors.PentimentoError.__subclasses__()}

    assert names <= set(pentimento.sdk.__all__)


def test_the_package_itself_has_them_too() -> None:
    assert [
        name for name in pentimento.sdk.__all__ if getattr(pentimento, name) is not getattr(pentimento.sdk, name)
    ] == []


def test_private_name_is_missing() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        pentimento.Server  # noqa: B018 # the test is the access itself


def test_a_request_is_made_without_grpc() -> None:
    script = "import sys, pentimento; pentimento.ImageRequest('a circle'); print({'grpc', 'PIL'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "set()"


def test_both_clients_offer_the_same_methods() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(pentimento.sdk.Client) == public(pentimento.sdk.AsyncClient)
