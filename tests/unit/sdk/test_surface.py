"""What others may build on: a change here is a change of the public API."""

import pentimento.sdk


def test_public_names() -> None:
    assert pentimento.sdk.__all__ == [
        "AskedControlNet",
        "AskedLora",
        "AsyncClient",
        "CacheMode",
        "Client",
        "ImageFormat",
        "ImageRequest",
        "Picture",
        "ReplayRequest",
        "RequestPage",
        "RequestQuery",
        "RequestState",
        "RequestSummary",
        "RetryPolicy",
    ]


def test_every_public_name_is_there() -> None:
    assert [name for name in pentimento.sdk.__all__ if not hasattr(pentimento.sdk, name)] == []


def test_both_clients_offer_the_same_methods() -> None:
    def public(cls: type) -> set[str]:
        return {name for name in vars(cls) if not name.startswith("_")}

    assert public(pentimento.sdk.Client) == public(pentimento.sdk.AsyncClient)
