"""Keep components (files of models, ControlNets and LoRAs, by sha256) where they are needed.

    remote store → local disk → host memory

    store = ComponentStore(directory, disk_bytes, host_bytes, rule)
    data = store.read(reference, ObjectRemote(objects))

Every block is verified when it arrives and whenever it is read. Processes of a host share a directory.
"""

from pentimento.stores.components.remote import ObjectRemote, Remote
from pentimento.stores.components.store import ComponentStore

__all__ = ["ComponentStore", "ObjectRemote", "Remote"]
