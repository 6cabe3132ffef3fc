"""Save a suite's ledgers and objects to a folder while it serves, and restore them to empty stores.

    python -m pentimento.stores.backup backup FOLDER --ledger-url URL… --objects-url URL…
    python -m pentimento.stores.backup restore FOLDER --ledger-url URL… --objects-url URL…

The ledgers are copied before the objects: a row names only objects that were stored before it, so that no row of the
copy misses an object that is written during the backup; objects without a row are swept later. Input images are also
copied before the ledgers: a request that ends during the backup, and is unfinished in the copy, still has its input.

The index of vectors is left out: the gateway makes it again from its ledger. So are keys, tokens and certificates,
which belong where secrets are stored, unless `--key-file` names them.

A restored journal gets a new identity and epochs above every earlier one by this host's clock (or `--above`): workers
that have served the lost suite accept its frontdoor, and reject what remains of the former one.
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pentimento.domain.clock import epoch_at, latest_believable
from pentimento.domain.errors import FailedPrecondition, InvalidArgument, PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.files.private_files import make_private_directory, replace_file
from pentimento.stores.errors import ObjectCorrupt, ObjectMissing, StoreUnavailable
from pentimento.stores.ledger.copies import copy_ledger, kind_of, require_empty, restore_ledger
from pentimento.stores.ledger.journal.requests import open_journal
from pentimento.stores.objects import ObjectStore, open_objects
from pentimento.stores.objects.ownership import adopt

MANIFEST = "manifest.json"
FORMAT = 1
# Transfers at the same time; of S3, each waits for the network.
_PARALLEL = 8
_INPUTS = "inputs/"
T = TypeVar("T")


def back_up(
    folder: Path, ledger_urls: Sequence[str], objects_urls: Sequence[str], key_files: Sequence[Path] = ()
) -> str:
    """Write a backup to a new or empty folder, and return a line about it. The manifest is written last: a folder
    without one is no backup. Raises InvalidArgument, FailedPrecondition and the stores' errors."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FailedPrecondition("TARGET_NOT_EMPTY", f"folder: must be a new or an empty folder, got {folder}")
    sources = [open_objects(url, read_only=True) for url in objects_urls]
    make_private_directory(folder)
    made_at = time.time()
    copies = [open_objects(_copy_url(folder, number)) for number in range(len(sources))]
    stored: list[dict[str, ObjectReference]] = [{} for _ in sources]
    for source, copy, found in zip(sources, copies, stored, strict=True):
        _copy_objects(source, copy, _INPUTS, found)
    ledgers = []
    for number, url in enumerate(ledger_urls):
        file = folder / f"ledger-{number}"
        ledgers.append({"kind": kind_of(url), "components": copy_ledger(url, file), **_described(file)})
    for source, copy, found in zip(sources, copies, stored, strict=True):
        _copy_objects(source, copy, "", found)
    keys = [_copied_key(file, folder) for file in key_files]
    objects = [{key: [one.size_bytes, one.digest] for key, one in sorted(found.items())} for found in stored]
    manifest = {"format": FORMAT, "made_at": made_at, "ledgers": ledgers, "objects": objects, "keys": keys}
    replace_file(folder / MANIFEST, json.dumps(manifest, indent=1), mode=0o600, durable=True)
    size = sum(one.size_bytes for found in stored for one in found.values())
    return f"saved {len(ledgers)} ledgers and {sum(map(len, stored))} objects of {size} bytes to {folder}"


def restore(folder: Path, ledger_urls: Sequence[str], objects_urls: Sequence[str], above: int = 0) -> str:
    """Write a backup to empty stores, in the order of the URLs of `backup`, and return a line about it. Everything is
    checked before anything is written. Raises FailedPrecondition BACKUP_DAMAGED, BACKUP_OF_OTHER_STORES or
    TARGET_NOT_EMPTY, InvalidArgument and the stores' errors."""
    latest = latest_believable(time.time()) - 1
    if above > latest:
        raise InvalidArgument.of("above", f"must be at most {latest}, which workers still believe, got {above}")
    manifest = _verified(folder)
    ledgers, stored = manifest["ledgers"], manifest["objects"]
    kinds = [one["kind"] for one in ledgers]
    if [kind_of(url) for url in ledger_urls] != kinds or len(objects_urls) != len(stored):
        wanted = f"{len(stored)} object stores and ledgers of {', '.join(kinds)}: name as many, in this order"
        raise FailedPrecondition("BACKUP_OF_OTHER_STORES", f"the backup has {wanted}")
    for url in ledger_urls:
        require_empty(url)
    targets = [open_objects(url) for url in objects_urls]
    if any(next(iter(target.keys()), None) for target in targets):
        raise FailedPrecondition("TARGET_NOT_EMPTY", "objects_url: must name an empty store, it has objects")
    # Ledgers last: an interrupted restore leaves none that names missing objects.
    for number, target in enumerate(targets):
        _restore_objects(open_objects(_copy_url(folder, number), read_only=True), target, _references(stored[number]))
    for number, url in enumerate(ledger_urls):
        restore_ledger(url, folder / f"ledger-{number}")
    journals = [url for url, one in zip(ledger_urls, ledgers, strict=True) if "journal" in one["components"]]
    for number, url in enumerate(journals):
        _renew(url, max(above, epoch_at(time.time())), targets[number : number + 1])
    return f"restored {len(ledgers)} ledgers and {sum(map(len, stored))} objects"


def _copy_url(folder: Path, number: int) -> str:
    return f"file://{quote(str(folder.absolute() / f'objects-{number}'))}"


def _each(values: Iterable[T], work: Callable[[T], object]) -> None:
    """Do the work of all values, several at a time; raises the first error."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for _ in pool.map(work, values):
            pass


def _copy_objects(source: ObjectStore, copy: ObjectStore, prefix: str, copied: dict[str, ObjectReference]) -> None:
    """Copy the objects under `prefix` that are not yet copied, and add their references."""

    def copy_one(key: str) -> None:
        # It was deleted since it was listed.
        with suppress(ObjectMissing):
            copied[key] = copy.put(key, source.get_unverified(key))

    _each([key for key in source.keys(prefix) if key not in copied], copy_one)


def _restore_objects(copy: ObjectStore, target: ObjectStore, references: Iterable[ObjectReference]) -> None:
    _each(references, lambda one: target.put(one.key, copy.get(one)))


def _described(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"size_bytes": file.stat().st_size, "digest": f"sha256:{digest}"}


def _copied_key(file: Path, folder: Path) -> dict[str, Any]:
    target = folder / "keys" / file.name
    try:
        make_private_directory(target.parent)
        # Two files of one name would replace each other.
        with target.open("xb") as opened:
            target.chmod(0o600)
            opened.write(file.read_bytes())
    except OSError as error:
        raise InvalidArgument.of("key_file", f"{file} cannot be copied: {error.strerror}") from None
    return {"name": file.name, **_described(target)}


def _references(stored: Mapping[str, Sequence[Any]]) -> list[ObjectReference]:
    return [ObjectReference(key, digest, size) for key, (size, digest) in stored.items()]


def _verified(folder: Path) -> dict[str, Any]:
    """Return the manifest of a backup, with every file checked against it. Raises FailedPrecondition BACKUP_DAMAGED
    that names the first wrong file."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            raise _damaged(MANIFEST, f"has format {manifest['format']}, this build reads {FORMAT}")
        files = {f"ledger-{number}": one for number, one in enumerate(manifest["ledgers"])}
        files |= {f"keys/{one['name']}": one for one in manifest["keys"]}
        for name, one in files.items():
            if _described(folder / name) != {name: one[name] for name in ("size_bytes", "digest")}:
                raise _damaged(name, "has other bytes than were saved")
        for number, stored in enumerate(manifest["objects"]):
            _each(_references(stored), open_objects(_copy_url(folder, number), read_only=True).get)
    except (ObjectMissing, ObjectCorrupt) as error:
        raise _damaged(error.key, error.message) from None
    except StoreUnavailable as error:
        raise _damaged("objects", error.message) from None
    except OSError as error:
        raise _damaged(str(error.filename), error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(MANIFEST, f"cannot be read: {type(error).__name__}") from None
    return manifest


def _damaged(name: str, words: str) -> FailedPrecondition:
    return FailedPrecondition("BACKUP_DAMAGED", f"{name}: {words}; nothing was restored")


def _renew(ledger_url: str, above: int, owned: Sequence[ObjectStore]) -> None:
    """Give the journal a new identity and larger epochs, and make it the owner of its objects."""
    journal = open_journal(ledger_url)
    try:
        journal.renew(above).result()
        for store in owned:
            adopt(store, journal.identity().result())
    finally:
        journal.close()


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    backing_up, restoring = commands.add_parser("backup"), commands.add_parser("restore")
    for command in (backing_up, restoring):
        command.add_argument("folder", type=Path)
        command.add_argument("--ledger-url", action="append", required=True)
        command.add_argument("--objects-url", action="append", required=True)
    backing_up.add_argument("--key-file", action="append", type=Path, default=[])
    restoring.add_argument("--above", type=int, default=0)
    given = parser.parse_args(argv)
    try:
        if given.command == "backup":
            print(back_up(given.folder, given.ledger_url, given.objects_url, given.key_file))
        else:
            print(restore(given.folder, given.ledger_url, given.objects_url, given.above))
    except (PentimentoError, OSError) as error:
        print(f"pentimento {given.command}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
