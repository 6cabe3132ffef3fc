"""Find models below an address of S3, without known digests: fetch their files into the component store, and remember
the models."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import PurePosixPath

from pentimento.domain.errors import FailedPrecondition
from pentimento.domain.generation import ObjectReference
from pentimento.domain.models import ModelFile, ModelVariant
from pentimento.stores.components.disk import HeldBlob
from pentimento.stores.components.models import FILES_AT_ONCE, KnownFiles, ModelFolders
from pentimento.stores.objects.s3_prefix import S3Prefix


class Address:
    """List the files below `s3://bucket/path`, and fetch some. Create it in a block of `folders.alone(url)`."""

    def __init__(self, url: str, folders: ModelFolders) -> None:
        """List the files. Raises InvalidArgument for another url, StoreUnavailable."""
        self._url = url
        self._prefix = S3Prefix(url)
        self._folders = folders
        self._listing = self._prefix.files()
        self.name = self._prefix.name

    @property
    def paths(self) -> dict[str, PurePosixPath]:
        """Return the paths of the files, except paths out of a directory."""
        paths = {path: PurePosixPath(path) for path in self._listing}
        return {path: parts for path, parts in paths.items() if str(parts) == path and ".." not in parts.parts}

    @contextmanager
    def fetched(self, paths: Sequence[str]) -> Iterator[tuple[ModelFile, ...]]:
        """Fetch files, and keep them on the local disk during the block. Raises StoreFull if they do not fit there
        together, before any is fetched, and the stores' errors."""
        self._folders.components.check_room(sum(self._listing[path].size_bytes for path in paths))
        with ExitStack() as held:
            with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="model-files") as pool:
                blobs = list(pool.map(lambda path: held.enter_context(self._adopting(path)), paths))
            found = sorted(zip(paths, blobs, strict=True))
            yield tuple(ModelFile(path, one.sum.sha256, one.sum.size_bytes, one.sum.blocks) for path, one in found)

    @contextmanager
    def _adopting(self, path: str) -> Iterator[HeldBlob]:
        listed = self._listing[path]
        label = "\0".join((self._url, path, str(listed.size_bytes), listed.tag))
        reference = ObjectReference(path, path, listed.size_bytes)
        with self._folders.components.adopting(label, reference, KnownFiles(self.name, self._prefix, {})) as held:
            yield held


def model_at(
    url: str, digest: str, name: str, folders: ModelFolders, find: Callable[[str, str, ModelFolders], ModelVariant]
) -> ModelVariant:
    """Return the model of an address as `name`: as it was found before on this host, or as `find` finds it. Raises
    FailedPrecondition MODEL_DIGEST_MISMATCH for an address with another digest, and the errors of `find`."""
    with folders.alone(url):
        model = folders.remembered(digest) or find(url, name, folders)
    if model.digest != digest:
        message = f"{url.partition('?')[0]}: its digest is {model.digest}, expected {digest}"
        raise FailedPrecondition("MODEL_DIGEST_MISMATCH", message)
    return replace(model, name=name, source=url)
