"""Record which journal owns the objects of a store. A journal's frontdoor deletes objects that its own rows do not
name, so that two journals over one store would delete each other's images. Two marks in the store prevent this:

    owner/journal     the identity of the journal that owns these objects
    owner/disputed    a second journal came: neither deletes unnamed objects until an operator assigns the store
"""

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects.store import ObjectStore, refer_to

_OWNER, _DISPUTED = "owner/journal", "owner/disputed"


def claim(store: ObjectStore, journal_id: str) -> None:
    """Mark the objects as that journal's if they have no owner yet. Raises FailedPrecondition OBJECTS_DISPUTED if
    another journal owns them, or has claimed them since."""
    mark = journal_id.encode()
    try:
        if not _is_there(store, refer_to(_OWNER, mark)):
            store.put(_OWNER, mark)
    except ObjectCorrupt:
        # The mark belongs to another journal, which must see the dispute too.
        store.put(_DISPUTED, b"")
    if _is_there(store, refer_to(_DISPUTED, b"")):
        message = "the object store has objects of another journal: what no row names stays there"
        raise FailedPrecondition("OBJECTS_DISPUTED", message)


def adopt(store: ObjectStore, journal_id: str) -> None:
    """Mark the objects as that journal's, regardless of the current owner."""
    store.put(_OWNER, journal_id.encode())
    store.delete(_DISPUTED)


def _is_there(store: ObjectStore, mark: ObjectReference) -> bool:
    try:
        store.get(mark)
    except ObjectMissing:
        return False
    return True
