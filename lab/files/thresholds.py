"""Read tables of thresholds from TOML documents."""

from lab.files.toml_document import TomlTable
from pentimento.policies.cache_selection import Threshold, Thresholds


def read_thresholds(table: TomlTable | None, default: Thresholds = ()) -> Thresholds:
    """Return the rows of `similarity` and `saved_share`, lists of the same length; the default without a table. Raises
    InvalidArgument that names file, line, field and limit."""
    if table is None:
        return default
    similarity, saved = table.numbers("similarity", minimum=-1.0), table.numbers("saved_share")
    if len(similarity) != len(saved):
        raise table.error("saved_share", f"must be one for each similarity, {len(similarity)}, got {len(saved)}")
    for field, values in (("similarity", similarity), ("saved_share", saved)):
        if list(values) != sorted(values):
            raise table.error(field, f"must ascend: what is nearer saves no less; got {list(values)}")
    try:
        return tuple(Threshold(*pair) for pair in zip(similarity, saved, strict=True))
    except ValueError as error:
        raise table.error("saved_share", str(error)) from None
