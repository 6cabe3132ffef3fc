"""Define the tables of the gateway's ledger, and their migrations.

grant    open (entry_id NULL) -> committed; expired ones and released ones are deleted
object   granted -> held by an entry -> doomed -> gone; a row outlives its object, never the other way round
entry    live (in the index or not yet) -> doomed -> gone from the index, then from here
pin      holds a doomed object back until it expires
holding  totals of a tenant's live entries; no row without entries

The database itself updates holdings, in triggers, so that they stay correct while a gateway of the previous build runs,
which does not know them.
"""

from sqlalchemy import BigInteger, Double, LargeBinary, MetaData, Table, Text

from pentimento.stores.ledger.columns import keys, optional, present
from pentimento.stores.ledger.migrations import Migration

_METADATA = MetaData()

# One row. `cache_id` is part of every object key, so that two caches in one object store never sweep each other.
# `sequence` orders the entries by age, independent of the clock; `tick` counts additions and uses of items: the clock
# of access records. `eviction_rule`: the rule that computed the ranks.
state = Table(
    "cache_state",
    _METADATA,
    *keys(singleton=BigInteger),
    *present(cache_id=Text),
    *optional(encoder_digest=Text, dimension_count=BigInteger),
    *present(sequence=BigInteger, entry_count=BigInteger, object_count=BigInteger, size_bytes=BigInteger),
    *present(tick=BigInteger, eviction_rule=Text),
)

grants = Table(
    "cache_grants",
    _METADATA,
    *keys(grant_id=Text),
    *present(pool=Text, tenant=Text, scope_digest=Text, request_id=Text, fencing_token=BigInteger, expires_at=Double),
    *optional(entry_id=Text),
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
    *present(object_count=BigInteger, size_bytes=BigInteger, rank_score=Double, rank_tie=BigInteger),
    *present(indexed=BigInteger),
    *optional(doomed_at=Double),
    *present(request_id=Text, repeat_key=Text),
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
    *present(tenant=Text, saved_steps=Double, added_tick=BigInteger, used_tick=BigInteger, use_count=BigInteger),
    *present(faded_uses=Double, rank_score=Double, rank_tie=BigInteger),
)

# The last batch of uses of each gateway: a repeated batch is not counted twice.
use_batches = Table("cache_use_batches", _METADATA, *keys(source=Text), *present(number=BigInteger, noted_at=Double))

# Objects kept until a time for a request's image, which was generated from them.
pins = Table("cache_pins", _METADATA, *keys(tenant=Text, request_id=Text, key=Text), *present(expires_at=Double))

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
)

# The bounds of tenants with their own.
tenant_limits = Table("cache_tenant_limits", _METADATA, *keys(tenant=Text), *present(size_bytes=BigInteger))

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

MIGRATIONS = (
    Migration(
        1,
        (
            """CREATE TABLE cache_state (
                singleton BIGINT PRIMARY KEY,
                cache_id TEXT NOT NULL,
                encoder_digest TEXT,
                dimension_count BIGINT,
                sequence BIGINT NOT NULL,
                entry_count BIGINT NOT NULL,
                object_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL
            )""",
            """CREATE TABLE cache_grants (
                grant_id TEXT PRIMARY KEY,
                pool TEXT NOT NULL,
                tenant TEXT NOT NULL,
                compatibility_key TEXT NOT NULL,
                request_id TEXT NOT NULL,
                fencing_token BIGINT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                entry_id TEXT
            )""",
            "CREATE INDEX cache_grants_expiry ON cache_grants (expires_at)",
            """CREATE TABLE cache_entries (
                entry_id TEXT PRIMARY KEY,
                pool TEXT NOT NULL,
                compatibility_key TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                sequence BIGINT NOT NULL,
                ancestor_depth BIGINT NOT NULL,
                text_vector {blob} NOT NULL,
                image_vector {blob},
                object_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL,
                indexed BIGINT NOT NULL,
                doomed_at DOUBLE PRECISION
            )""",
            "CREATE INDEX cache_entries_age ON cache_entries (sequence) WHERE doomed_at IS NULL",
            "CREATE INDEX cache_entries_unindexed ON cache_entries (sequence) WHERE indexed = 0 AND doomed_at IS NULL",
            "CREATE INDEX cache_entries_doomed ON cache_entries (doomed_at) WHERE doomed_at IS NOT NULL",
            """CREATE TABLE cache_objects (
                key TEXT PRIMARY KEY,
                grant_id TEXT NOT NULL,
                resume_step BIGINT,
                entry_id TEXT,
                sigma DOUBLE PRECISION,
                digest TEXT,
                size_bytes BIGINT,
                delete_after DOUBLE PRECISION
            )""",
            "CREATE INDEX cache_objects_grant ON cache_objects (grant_id)",
            "CREATE INDEX cache_objects_entry ON cache_objects (entry_id)",
            "CREATE INDEX cache_objects_doomed ON cache_objects (delete_after) WHERE delete_after IS NOT NULL",
        ),
    ),
    Migration(
        2,
        (
            "ALTER TABLE cache_entries ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
            "UPDATE cache_entries SET tenant = pool WHERE pool <> '*shared*'",
            """UPDATE cache_entries SET tenant = COALESCE((
                SELECT tenant FROM cache_grants WHERE cache_grants.entry_id = cache_entries.entry_id), '')
                WHERE pool = '*shared*'""",
            "CREATE INDEX cache_entries_tenant ON cache_entries (tenant, sequence, size_bytes) WHERE doomed_at IS NULL",
        ),
    ),
    Migration(
        3,
        (
            "ALTER TABLE cache_grants RENAME COLUMN compatibility_key TO scope_digest",
            "ALTER TABLE cache_objects ADD COLUMN compatibility_key TEXT NOT NULL DEFAULT ''",
            # An entry's key covered latents and image together, in another format: it would never be found again.
            "UPDATE cache_objects SET delete_after = 0 WHERE delete_after IS NULL AND entry_id IS NOT NULL",
            "UPDATE cache_entries SET doomed_at = created_at WHERE doomed_at IS NULL",
            "UPDATE cache_state SET entry_count = 0, object_count = 0, size_bytes = 0",
            "ALTER TABLE cache_entries DROP COLUMN compatibility_key",
        ),
    ),
    Migration(
        4,
        (
            "ALTER TABLE cache_state ADD COLUMN tick BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE cache_state ADD COLUMN eviction_rule TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE cache_entries ADD COLUMN rank_score DOUBLE PRECISION NOT NULL DEFAULT 0",
            "ALTER TABLE cache_entries ADD COLUMN rank_tie BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE cache_objects ADD COLUMN tenant TEXT NOT NULL DEFAULT ''",
            "ALTER TABLE cache_objects ADD COLUMN saved_steps DOUBLE PRECISION NOT NULL DEFAULT 1",
            "ALTER TABLE cache_objects ADD COLUMN added_tick BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE cache_objects ADD COLUMN used_tick BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE cache_objects ADD COLUMN use_count BIGINT NOT NULL DEFAULT 0",
            "ALTER TABLE cache_objects ADD COLUMN faded_uses DOUBLE PRECISION NOT NULL DEFAULT 1",
            "ALTER TABLE cache_objects ADD COLUMN rank_score DOUBLE PRECISION NOT NULL DEFAULT 0",
            "ALTER TABLE cache_objects ADD COLUMN rank_tie BIGINT NOT NULL DEFAULT 0",
            # Existing objects count as never used, in the order of their entries. The step counts of their images' runs
            # are unknown.
            "UPDATE cache_state SET tick = sequence",
            "UPDATE cache_entries SET rank_tie = sequence",
            """UPDATE cache_objects SET
                tenant = (SELECT tenant FROM cache_entries WHERE entry_id = cache_objects.entry_id),
                added_tick = (SELECT sequence FROM cache_entries WHERE entry_id = cache_objects.entry_id),
                used_tick = (SELECT sequence FROM cache_entries WHERE entry_id = cache_objects.entry_id),
                rank_tie = (SELECT sequence FROM cache_entries WHERE entry_id = cache_objects.entry_id),
                saved_steps = COALESCE(resume_step, 1)
                WHERE entry_id IN (SELECT entry_id FROM cache_entries)""",
            "DROP INDEX IF EXISTS cache_entries_tenant",
            """CREATE INDEX cache_entries_rank ON cache_entries (tenant, rank_score, rank_tie, sequence, size_bytes)
                WHERE doomed_at IS NULL""",
            """CREATE INDEX cache_objects_rank ON cache_objects (tenant, rank_score, rank_tie, key)
                WHERE entry_id IS NOT NULL AND delete_after IS NULL""",
            """CREATE TABLE cache_use_batches (
                source TEXT PRIMARY KEY,
                number BIGINT NOT NULL,
                noted_at DOUBLE PRECISION NOT NULL
            )""",
        ),
    ),
    Migration(
        5,
        (
            """CREATE TABLE cache_pins (
                tenant TEXT NOT NULL,
                request_id TEXT NOT NULL,
                key TEXT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (tenant, request_id, key)
            )""",
            "CREATE INDEX cache_pins_key ON cache_pins (key, expires_at)",
            "CREATE INDEX cache_pins_expiry ON cache_pins (expires_at)",
        ),
    ),
    Migration(
        6,
        (
            """CREATE TABLE cache_quality_thresholds (
                encoder_digest TEXT NOT NULL,
                model_digest TEXT NOT NULL,
                reference_model_digest TEXT NOT NULL,
                from_image BIGINT NOT NULL,
                saved_ppm BIGINT NOT NULL,
                similarity DOUBLE PRECISION NOT NULL,
                moved_at_number BIGINT NOT NULL,
                sample_count BIGINT NOT NULL,
                PRIMARY KEY (encoder_digest, model_digest, reference_model_digest, from_image, saved_ppm)
            )""",
            """CREATE TABLE cache_quality_samples (
                request_id TEXT PRIMARY KEY,
                encoder_digest TEXT NOT NULL,
                model_digest TEXT NOT NULL,
                reference_model_digest TEXT NOT NULL,
                from_image BIGINT NOT NULL,
                saved_ppm BIGINT NOT NULL,
                number BIGINT NOT NULL,
                similarity DOUBLE PRECISION NOT NULL,
                quality DOUBLE PRECISION NOT NULL,
                scratch_quality DOUBLE PRECISION NOT NULL
            )""",
            """CREATE UNIQUE INDEX cache_quality_samples_number ON cache_quality_samples
                (encoder_digest, model_digest, reference_model_digest, from_image, saved_ppm, number)""",
        ),
    ),
    Migration(7, ("ALTER TABLE cache_entries ADD COLUMN request_id TEXT NOT NULL DEFAULT ''",)),
    Migration(8, ("CREATE TABLE cache_tenant_limits (tenant TEXT PRIMARY KEY, size_bytes BIGINT NOT NULL)",)),
    # Every reservation counts the open grants, which are few compared with the recently committed ones.
    Migration(9, ("CREATE INDEX cache_grants_open ON cache_grants (tenant) WHERE entry_id IS NULL",)),
    Migration(
        10,
        (
            """CREATE TABLE cache_holdings (
                tenant TEXT PRIMARY KEY,
                entry_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL
            )""",
            # On PostgreSQL no other session writes entries from here to the end.
            _HOLDING_TRIGGERS,
            """INSERT INTO cache_holdings (tenant, entry_count, size_bytes)
                SELECT tenant, COUNT(*), SUM(size_bytes) FROM cache_entries WHERE doomed_at IS NULL GROUP BY tenant""",
        ),
    ),
    Migration(11, ("ALTER TABLE cache_entries ADD COLUMN repeat_key TEXT NOT NULL DEFAULT ''",)),
)
