"""Whose objects lie in a store. A journal's frontdoor deletes what its own rows do not name, so that two journals over
one store would delete each other's pictures. Marks in the store tell them:

    owner/journal     the identity of the journal whose objects these are
    owner/disputed    another one came: neither deletes what it does not name, until an operator says whose they are
"""

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import ObjectReference
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing
from pentimento.stores.objects.store import ObjectStore, refer_to

_OWNER, _DISPUTED = "owner/journal", "owner/disputed"


def claim(store: ObjectStore, journal_id: str) -> None:
    """Mark the objects as that journal's where they are nobody's yet. Raises FailedPrecondition OBJECTS_DISPUTED where
    they are another one's, or another one came since."""
    mark = journal_id.encode()
    try:
        if not _is_there(store, refer_to(_OWNER, mark)):
            store.put(_OWNER, mark)
    except ObjectCorrupt:
        # The mark is another's, who is to hear of it, too.
        store.put(_DISPUTED, b"")
    if _is_there(store, refer_to(_DISPUTED, b"")):
        message = "the object store has objects of another journal: what no row names stays there"
        raise FailedPrecondition("OBJECTS_DISPUTED", message)


def adopt(store: ObjectStore, journal_id: str) -> None:
    """Mark the objects as that journal's, whosever they were."""
    store.put(_OWNER, journal_id.encode())
    store.delete(_DISPUTED)


def _is_there(store: ObjectStore, mark: ObjectReference) -> bool:
    try:
        store.get(mark)
    except ObjectMissing:
        return False
    return True
