"""Define the tables of the gateway's ledger, and their migrations.

grant    open (entry_id NULL) -> committed; expired ones and released ones are deleted
object   granted -> held by an entry -> doomed -> gone; a row outlives its object, never the other way round
entry    live (in the index or not yet) -> doomed -> gone from the index, then from here
pin      holds a doomed object back until it expires
holding  totals of a tenant's live entries; no row without entries

The database itself updates holdings, in triggers: they equal the sums of the rows for every writer.
"""

from sqlalchemy import BigInteger, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.columns import defaulting, index, keys, optional, present
from pentimento.stores.ledger.migrations import Schema

_METADATA = MetaData()

# One row. `cache_id` is part of every object key, so that two caches in one object store never sweep each other.
# `sequence` orders the entries by age, independent of the clock; `tick` counts additions and uses of items: the clock
# of access records. `eviction_rule`: the rule that computed the ranks.
state = Table(
    "cache_state",
    _METADATA,
    *keys(singleton=BigInteger),
    *present(cache_id=Text),
    *present(sequence=BigInteger, entry_count=BigInteger, object_count=BigInteger, size_bytes=BigInteger),
    *present(tick=BigInteger, eviction_rule=Text),
)

# The encoder of each space, "text" or "image", from the first vector in it on.
encoders = Table(
    "cache_encoders", _METADATA, *keys(space=Text), *present(encoder_digest=Text, dimension_count=BigInteger)
)

grants = Table(
    "cache_grants",
    _METADATA,
    *keys(grant_id=Text),
    *present(pool=Text, tenant=Text, scope_digest=Text, request_id=Text, fencing_token=BigInteger, expires_at=Double),
    *optional(entry_id=Text),
    index("cache_grants_expiry", "expires_at"),
    # Every reservation counts the open grants, which are few compared with the recently committed ones.
    index("cache_grants_open", "tenant", where="entry_id IS NULL"),
)

# `tenant`: the owner, also in the shared pool; `request_id`: the request that made the image; `repeat_key`: digest of
# that request's prompt and seed; each empty if unknown. The rank is the highest of its items. `indexed`: 1 once the
# index holds it, under the keys of its current items.
entries = Table(
    "cache_entries",
    _METADATA,
    *keys(entry_id=Text),
    *present(pool=Text, tenant=Text, created_at=Double, sequence=BigInteger, ancestor_depth=BigInteger),
    *present(text_vector=LargeBinary),
    *optional(image_vector=LargeBinary),
    *present(object_count=BigInteger, size_bytes=BigInteger),
    *defaulting("0", rank_score=Double, rank_tie=BigInteger),
    *present(indexed=BigInteger),
    *optional(doomed_at=Double),
    *defaulting("''", request_id=Text, repeat_key=Text),
    index("cache_entries_age", "sequence", where="doomed_at IS NULL"),
    index("cache_entries_unindexed", "sequence", where="indexed = 0 AND doomed_at IS NULL"),
    index("cache_entries_doomed", "doomed_at", where="doomed_at IS NOT NULL"),
    index(
        "cache_entries_rank", "tenant", "rank_score", "rank_tie", "sequence", "size_bytes", where="doomed_at IS NULL"
    ),
)

# `resume_step` is NULL for the final image. A lookup finds the object under `compatibility_key`, empty until it is
# held. `delete_after`: when it may be deleted from the object store; NULL while it is granted or held, 0 once it is
# being deleted. The last columns are the access record, once an entry holds it, and its rank for eviction.
objects = Table(
    "cache_objects",
    _METADATA,
    *keys(key=Text),
    *present(grant_id=Text),
    *optional(resume_step=BigInteger, entry_id=Text),
    *present(compatibility_key=Text),
    *optional(sigma=Double, digest=Text, size_bytes=BigInteger, delete_after=Double),
    *defaulting("''", tenant=Text),
    *defaulting("1", saved_steps=Double, faded_uses=Double),
    *defaulting("0", added_tick=BigInteger, used_tick=BigInteger, use_count=BigInteger),
    *defaulting("0", rank_score=Double, rank_tie=BigInteger),
    index("cache_objects_grant", "grant_id"),
    index("cache_objects_entry", "entry_id"),
    index("cache_objects_doomed", "delete_after", where="delete_after IS NOT NULL"),
    index(
        "cache_objects_rank",
        *("tenant", "rank_score", "rank_tie", "key"),
        where="entry_id IS NOT NULL AND delete_after IS NULL",
    ),
)

# The last batch of uses of each gateway: a repeated batch is not counted twice.
use_batches = Table("cache_use_batches", _METADATA, *keys(source=Text), *present(number=BigInteger, noted_at=Double))

# Objects kept until a time for a request's image, which was generated from them.
pins = Table(
    "cache_pins",
    _METADATA,
    *keys(tenant=Text, request_id=Text, key=Text),
    *present(expires_at=Double),
    index("cache_pins_key", "key", "expires_at"),
    index("cache_pins_expiry", "expires_at"),
)

_THRESHOLD = {
    **{"encoder_digest": Text, "model_digest": Text, "reference_model_digest": Text},
    **{"from_image": BigInteger, "saved_ppm": BigInteger},
}
# Thresholds that follow the measured quality of hits. `sample_count` numbers the samples, deleted ones included.
quality_thresholds = Table(
    "cache_quality_thresholds",
    _METADATA,
    *keys(**_THRESHOLD),
    *present(similarity=Double, moved_at_number=BigInteger, sample_count=BigInteger),
)

# The newest hits of each threshold that were generated again for comparison, each once.
quality_samples = Table(
    "cache_quality_samples",
    _METADATA,
    *keys(request_id=Text),
    *present(**_THRESHOLD, number=BigInteger, similarity=Double, quality=Double, scratch_quality=Double),
    index("cache_quality_samples_number", *_THRESHOLD, "number", unique=True),
)

# The bounds of tenants with their own.
tenant_limits = Table("cache_tenant_limits", _METADATA, *keys(tenant=Text), *present(size_bytes=BigInteger))

# Counts of the deleted data of each erased tenant, for ever: an identity is never reused.
erasures = Table(
    "cache_erasures",
    _METADATA,
    *keys(tenant=Text),
    *present(entry_count=BigInteger, latent_count=BigInteger, latent_bytes=BigInteger),
    *present(image_count=BigInteger, image_bytes=BigInteger, vector_count=BigInteger, vector_bytes=BigInteger),
)

holdings = Table(
    "cache_holdings", _METADATA, *keys(tenant=Text), *present(entry_count=BigInteger, size_bytes=BigInteger)
)

# One more entry of a tenant, one less, and a tenant without entries.
_HOLDS_MORE = """INSERT INTO cache_holdings (tenant, entry_count, size_bytes) VALUES (NEW.tenant, 1, NEW.size_bytes)
    ON CONFLICT (tenant) DO UPDATE SET entry_count = cache_holdings.entry_count + 1,
    size_bytes = cache_holdings.size_bytes + NEW.size_bytes"""
_HOLDS_LESS = """UPDATE cache_holdings SET entry_count = entry_count - 1, size_bytes = size_bytes - OLD.size_bytes
    WHERE tenant = OLD.tenant"""
_HOLDS_NONE = "DELETE FROM cache_holdings WHERE tenant = OLD.tenant AND entry_count = 0"
_HOLDING_TRIGGERS = {
    "sqlite": (
        f"""CREATE TRIGGER cache_entries_came AFTER INSERT ON cache_entries WHEN NEW.doomed_at IS NULL
            BEGIN {_HOLDS_MORE}; END""",
        f"""CREATE TRIGGER cache_entries_shrank AFTER UPDATE OF size_bytes ON cache_entries
            WHEN OLD.doomed_at IS NULL AND NEW.doomed_at IS NULL BEGIN {_HOLDS_LESS}; {_HOLDS_MORE}; END""",
        f"""CREATE TRIGGER cache_entries_doomed AFTER UPDATE OF doomed_at ON cache_entries
            WHEN OLD.doomed_at IS NULL AND NEW.doomed_at IS NOT NULL BEGIN {_HOLDS_LESS}; {_HOLDS_NONE}; END""",
        f"""CREATE TRIGGER cache_entries_went AFTER DELETE ON cache_entries WHEN OLD.doomed_at IS NULL
            BEGIN {_HOLDS_LESS}; {_HOLDS_NONE}; END""",
    ),
    "postgresql": (
        f"""CREATE FUNCTION cache_entries_held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP <> 'INSERT' AND OLD.doomed_at IS NULL THEN {_HOLDS_LESS}; END IF;
            IF TG_OP <> 'DELETE' AND NEW.doomed_at IS NULL THEN {_HOLDS_MORE}; END IF;
            IF TG_OP <> 'INSERT' THEN {_HOLDS_NONE}; END IF;
            RETURN NULL; END $$""",
        """CREATE TRIGGER cache_entries_held AFTER INSERT OR DELETE OR UPDATE OF size_bytes, doomed_at
            ON cache_entries FOR EACH ROW EXECUTE FUNCTION cache_entries_held()""",
    ),
}

# One encoder had both spaces; without a vector of an image any encoder may have theirs.
_ENCODER_OF_EACH_SPACE = (
    """CREATE TABLE cache_encoders (space TEXT NOT NULL, encoder_digest TEXT NOT NULL, dimension_count BIGINT NOT NULL,
    PRIMARY KEY (space))""",
    """INSERT INTO cache_encoders SELECT 'text', encoder_digest, dimension_count FROM cache_state
    WHERE encoder_digest IS NOT NULL""",
    """INSERT INTO cache_encoders SELECT 'image', encoder_digest, dimension_count FROM cache_state
    WHERE encoder_digest IS NOT NULL AND EXISTS (SELECT 1 FROM cache_entries WHERE image_vector IS NOT NULL)""",
    "ALTER TABLE cache_state DROP COLUMN encoder_digest",
    "ALTER TABLE cache_state DROP COLUMN dimension_count",
)

_ERASURES = (
    """CREATE TABLE cache_erasures (tenant TEXT NOT NULL, entry_count BIGINT NOT NULL, latent_count BIGINT NOT NULL,
    latent_bytes BIGINT NOT NULL, image_count BIGINT NOT NULL, image_bytes BIGINT NOT NULL,
    vector_count BIGINT NOT NULL, vector_bytes BIGINT NOT NULL, PRIMARY KEY (tenant))""",
)

SCHEMA = Schema("cache", 11, _METADATA, code=_HOLDING_TRIGGERS, migrations=(_ENCODER_OF_EACH_SPACE, _ERASURES))
