"""What a worker tells of its LoRAs where it has more than may be told."""

from pentimento.domain.adapters import Adapter, AdapterKind
from services.unet_worker.device.device_backend import HeldAdapters


def lora(name: str) -> Adapter:
    return Adapter(name, AdapterKind.LORA, f"sha256:{name}", "sd")


def test_those_that_need_not_be_loaded_come_first() -> None:
    held = HeldAdapters((lora("a"), lora("b"), lora("c"), lora("d")), ("d", "c"))

    told = held.first(3)

    assert [adapter.name for adapter in told.known] == ["d", "c", "a"]
    assert told.resident == ("d", "c")
    assert held.first(1) == HeldAdapters((lora("d"),), ("d",))


def test_a_name_is_told_once() -> None:
    held = HeldAdapters((lora("a"), lora("a"), lora("b")), ("b", "b", "gone"))

    assert held.first(9) == HeldAdapters((lora("b"), lora("a")), ("b", "gone"))
