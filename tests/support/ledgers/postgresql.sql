CREATE FUNCTION cache_entries_held() RETURNS trigger
    LANGUAGE plpgsql
    AS $$ BEGIN
            IF TG_OP <> 'INSERT' AND OLD.doomed_at IS NULL THEN UPDATE cache_holdings SET entry_count = entry_count - 1, size_bytes = size_bytes - OLD.size_bytes
    WHERE tenant = OLD.tenant; END IF;
            IF TG_OP <> 'DELETE' AND NEW.doomed_at IS NULL THEN INSERT INTO cache_holdings (tenant, entry_count, size_bytes) VALUES (NEW.tenant, 1, NEW.size_bytes)
    ON CONFLICT (tenant) DO UPDATE SET entry_count = cache_holdings.entry_count + 1,
    size_bytes = cache_holdings.size_bytes + NEW.size_bytes; END IF;
            IF TG_OP <> 'INSERT' THEN DELETE FROM cache_holdings WHERE tenant = OLD.tenant AND entry_count = 0; END IF;
            RETURN NULL; END $$;

CREATE TABLE cache_entries (
    entry_id text NOT NULL,
    pool text NOT NULL,
    created_at double precision NOT NULL,
    sequence bigint NOT NULL,
    ancestor_depth bigint NOT NULL,
    text_vector bytea NOT NULL,
    image_vector bytea,
    object_count bigint NOT NULL,
    size_bytes bigint NOT NULL,
    indexed bigint NOT NULL,
    doomed_at double precision,
    tenant text DEFAULT ''::text NOT NULL,
    rank_score double precision DEFAULT 0 NOT NULL,
    rank_tie bigint DEFAULT 0 NOT NULL,
    request_id text DEFAULT ''::text NOT NULL,
    repeat_key text DEFAULT ''::text NOT NULL
);

CREATE TABLE cache_grants (
    grant_id text NOT NULL,
    pool text NOT NULL,
    tenant text NOT NULL,
    scope_digest text NOT NULL,
    request_id text NOT NULL,
    fencing_token bigint NOT NULL,
    expires_at double precision NOT NULL,
    entry_id text
);

CREATE TABLE cache_holdings (
    tenant text NOT NULL,
    entry_count bigint NOT NULL,
    size_bytes bigint NOT NULL
);

CREATE TABLE cache_objects (
    key text NOT NULL,
    grant_id text NOT NULL,
    resume_step bigint,
    entry_id text,
    sigma double precision,
    digest text,
    size_bytes bigint,
    delete_after double precision,
    compatibility_key text DEFAULT ''::text NOT NULL,
    tenant text DEFAULT ''::text NOT NULL,
    saved_steps double precision DEFAULT 1 NOT NULL,
    added_tick bigint DEFAULT 0 NOT NULL,
    used_tick bigint DEFAULT 0 NOT NULL,
    use_count bigint DEFAULT 0 NOT NULL,
    faded_uses double precision DEFAULT 1 NOT NULL,
    rank_score double precision DEFAULT 0 NOT NULL,
    rank_tie bigint DEFAULT 0 NOT NULL
);

CREATE TABLE cache_pins (
    tenant text NOT NULL,
    request_id text NOT NULL,
    key text NOT NULL,
    expires_at double precision NOT NULL
);

CREATE TABLE cache_quality_samples (
    request_id text NOT NULL,
    encoder_digest text NOT NULL,
    model_digest text NOT NULL,
    reference_model_digest text NOT NULL,
    from_image bigint NOT NULL,
    saved_ppm bigint NOT NULL,
    number bigint NOT NULL,
    similarity double precision NOT NULL,
    quality double precision NOT NULL,
    scratch_quality double precision NOT NULL
);

CREATE TABLE cache_quality_thresholds (
    encoder_digest text NOT NULL,
    model_digest text NOT NULL,
    reference_model_digest text NOT NULL,
    from_image bigint NOT NULL,
    saved_ppm bigint NOT NULL,
    similarity double precision NOT NULL,
    moved_at_number bigint NOT NULL,
    sample_count bigint NOT NULL
);

CREATE TABLE cache_state (
    singleton bigint NOT NULL,
    cache_id text NOT NULL,
    encoder_digest text,
    dimension_count bigint,
    sequence bigint NOT NULL,
    entry_count bigint NOT NULL,
    object_count bigint NOT NULL,
    size_bytes bigint NOT NULL,
    tick bigint DEFAULT 0 NOT NULL,
    eviction_rule text DEFAULT ''::text NOT NULL
);

CREATE TABLE cache_tenant_limits (
    tenant text NOT NULL,
    size_bytes bigint NOT NULL
);

CREATE TABLE cache_use_batches (
    source text NOT NULL,
    number bigint NOT NULL,
    noted_at double precision NOT NULL
);

CREATE TABLE fleet_epoch (
    singleton bigint NOT NULL,
    epoch bigint NOT NULL,
    controller_id text NOT NULL,
    beat bigint NOT NULL
);

CREATE TABLE fleet_plan (
    singleton bigint NOT NULL,
    leader_epoch bigint NOT NULL,
    sequence bigint NOT NULL,
    plan bytea NOT NULL
);

CREATE TABLE fleet_registered (
    kind text NOT NULL,
    name text NOT NULL,
    digest text NOT NULL,
    document text NOT NULL,
    registered_at double precision NOT NULL
);

CREATE TABLE journal_attempts (
    request_id text NOT NULL,
    fencing_token bigint NOT NULL,
    attempt_number bigint NOT NULL,
    frontdoor_id text NOT NULL,
    frontdoor_epoch bigint NOT NULL,
    worker_id text NOT NULL,
    started_at double precision NOT NULL,
    cascade_stage bigint DEFAULT 0 NOT NULL,
    handed_picture bytea
);

CREATE TABLE journal_epoch (
    singleton bigint NOT NULL,
    epoch bigint NOT NULL,
    frontdoor_id text NOT NULL,
    beat bigint DEFAULT 0 NOT NULL,
    journal_id text DEFAULT ''::text NOT NULL,
    counted_s double precision DEFAULT 0 NOT NULL,
    wall_s double precision DEFAULT 0 NOT NULL,
    boot_s double precision DEFAULT 0 NOT NULL,
    boot_id text DEFAULT ''::text NOT NULL
);

CREATE TABLE journal_pinned_inputs (
    request_id text NOT NULL,
    place text NOT NULL,
    key text NOT NULL,
    digest text NOT NULL,
    size_bytes bigint NOT NULL
);

CREATE TABLE journal_pins (
    request_id text NOT NULL,
    tenant text NOT NULL,
    expires_at double precision NOT NULL,
    size_bytes bigint NOT NULL
);

CREATE TABLE journal_plan (
    singleton bigint NOT NULL,
    plan bytea NOT NULL
);

CREATE TABLE journal_requests (
    request_id text NOT NULL,
    tenant text NOT NULL,
    idempotency_key text,
    body bytea NOT NULL,
    body_hash text NOT NULL,
    accepted_at double precision NOT NULL,
    deadline_at double precision,
    frontdoor_id text NOT NULL,
    frontdoor_epoch bigint NOT NULL,
    state text NOT NULL,
    route bytea,
    newest_token bigint NOT NULL,
    newest_epoch bigint NOT NULL,
    attempt_count bigint NOT NULL,
    image_key text,
    image_digest text,
    image_size_bytes bigint,
    image_format text,
    width_px bigint,
    height_px bigint,
    provenance bytea,
    error_reason text NOT NULL,
    error_message text NOT NULL,
    finished_at double precision,
    cascade_stage bigint DEFAULT 0 NOT NULL,
    body_format bigint DEFAULT 0 NOT NULL,
    detached bigint DEFAULT 0 NOT NULL,
    accepted_counted_s double precision
);

CREATE TABLE journal_spool (
    key text NOT NULL,
    tenant text NOT NULL,
    digest text NOT NULL,
    size_bytes bigint NOT NULL,
    data bytea NOT NULL
);

CREATE TABLE journal_webhooks (
    request_id text NOT NULL,
    url text NOT NULL,
    state text NOT NULL,
    try_count bigint NOT NULL,
    next_at double precision NOT NULL,
    error text NOT NULL,
    told_id text DEFAULT ''::text NOT NULL,
    last_id text DEFAULT ''::text NOT NULL,
    request_count bigint DEFAULT 0 NOT NULL
);

CREATE TABLE schema_versions (
    component text NOT NULL,
    version bigint NOT NULL
);

CREATE TABLE tenant_book (
    singleton bigint NOT NULL,
    revision bigint NOT NULL
);

CREATE TABLE tenant_departures (
    tenant_id text NOT NULL,
    tenant text NOT NULL,
    quota text NOT NULL,
    created_at double precision NOT NULL,
    revision bigint NOT NULL,
    deleted_at double precision NOT NULL,
    purged_at double precision
);

CREATE TABLE tenant_keys (
    key_id text NOT NULL,
    tenant text NOT NULL,
    digest text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision,
    revoked_at double precision
);

CREATE TABLE tenant_usage (
    tenant text NOT NULL,
    hour_at bigint NOT NULL,
    counter text NOT NULL,
    amount double precision NOT NULL
);

CREATE TABLE tenants (
    tenant text NOT NULL,
    quota text NOT NULL,
    created_at double precision NOT NULL,
    revision bigint NOT NULL,
    tenant_id text DEFAULT ''::text NOT NULL
);

INSERT INTO cache_entries VALUES ('entry', 'pool', 1, 3, 2, '\x0000803f00000000', NULL, 1, 10, 1, NULL, 'tenant', 1, 3, 'r1', '');

INSERT INTO cache_grants VALUES ('open', 'pool', 'tenant', 'scope', 'r2', 7, 3600000000, NULL);

INSERT INTO cache_holdings VALUES ('tenant', 1, 10);

INSERT INTO cache_objects VALUES ('cache/a/5', 'gone', 5, 'entry', 0.5, 'sha256:01d448afd928065458cf670b60f5a594d735af0172c8d67f22a81680132681ca', 10, NULL, 'key', 'tenant', 5, 1, 1, 1, 1, 1, 0);
INSERT INTO cache_objects VALUES ('cache/a/10', 'gone', 10, NULL, 0.2, 'sha256:01d448afd928065458cf670b60f5a594d735af0172c8d67f22a81680132681ca', 10, 5, 'key', 'tenant', 5, 1, 1, 1, 1, 1, 0);

INSERT INTO cache_pins VALUES ('tenant', 'r3', 'cache/a/10', 3600000000);

INSERT INTO cache_state VALUES (1, 'id', 'e', 2, 3, 1, 1, 10, 4, 'fifo');

INSERT INTO cache_tenant_limits VALUES ('tenant', 77);

INSERT INTO fleet_epoch VALUES (1, 0, '', 0);

INSERT INTO fleet_plan VALUES (1, 2, 3, '\x00706c616e');

INSERT INTO fleet_registered VALUES ('model', 'm', 'sha256:m', '{}', 1800000000);

INSERT INTO journal_attempts VALUES ('open', 5, 1, 'frontdoor-1', 1, 'w', 1800000000, 1, '\x00696d616765');
INSERT INTO journal_attempts VALUES ('done', 6, 1, 'frontdoor-1', 1, 'w', 1800000000, 1, NULL);

INSERT INTO journal_epoch VALUES (1, 0, '', 0, '', 0, 0, 0, '');

INSERT INTO journal_pinned_inputs VALUES ('done', 'init_image', 'inputs/a', 'sha256:b', 7);

INSERT INTO journal_pins VALUES ('done', 'tenant', 1800000009, 5000);

INSERT INTO journal_plan VALUES (1, '\x00706c616e');

INSERT INTO journal_requests VALUES ('open', 'tenant', 'k1', '\x00626f6479', 'hash', 1800000000, 1800000060, 'frontdoor-1', 1, 'running', '\x00726f757465', 5, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', '', NULL, 1, 1, 1, NULL);
INSERT INTO journal_requests VALUES ('done', 'tenant', 'k2', '\x00626f6479', 'hash', 1800000000, 1800000060, 'frontdoor-1', 1, 'completed', NULL, 6, 1, 1, 'results/a', 'sha256:a', 3, 'png', 64, 48, '\x0070726f76656e616e6365', '', '', 105, 1, 1, 1, NULL);

INSERT INTO journal_spool VALUES ('results/w', 'tenant', 'sha256:w', 2, '\x0077');

INSERT INTO journal_webhooks VALUES ('open', 'https://a', 'pending', 2, 0, 'e', '', '', 0);

INSERT INTO schema_versions VALUES ('journal', 12);
INSERT INTO schema_versions VALUES ('cache', 11);
INSERT INTO schema_versions VALUES ('tenants', 2);
INSERT INTO schema_versions VALUES ('fleet', 1);

INSERT INTO tenant_book VALUES (1, 1);

INSERT INTO tenant_departures VALUES ('gone', 'gone', '{}', 1800000000, 3, 1800000000, NULL);

INSERT INTO tenants VALUES ('acme', '{}', 1800000000, 3, 'acme');

ALTER TABLE ONLY cache_entries
    ADD CONSTRAINT cache_entries_pkey PRIMARY KEY (entry_id);

ALTER TABLE ONLY cache_grants
    ADD CONSTRAINT cache_grants_pkey PRIMARY KEY (grant_id);

ALTER TABLE ONLY cache_holdings
    ADD CONSTRAINT cache_holdings_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY cache_objects
    ADD CONSTRAINT cache_objects_pkey PRIMARY KEY (key);

ALTER TABLE ONLY cache_pins
    ADD CONSTRAINT cache_pins_pkey PRIMARY KEY (tenant, request_id, key);

ALTER TABLE ONLY cache_quality_samples
    ADD CONSTRAINT cache_quality_samples_pkey PRIMARY KEY (request_id);

ALTER TABLE ONLY cache_quality_thresholds
    ADD CONSTRAINT cache_quality_thresholds_pkey PRIMARY KEY (encoder_digest, model_digest, reference_model_digest, from_image, saved_ppm);

ALTER TABLE ONLY cache_state
    ADD CONSTRAINT cache_state_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY cache_tenant_limits
    ADD CONSTRAINT cache_tenant_limits_pkey PRIMARY KEY (tenant);

ALTER TABLE ONLY cache_use_batches
    ADD CONSTRAINT cache_use_batches_pkey PRIMARY KEY (source);

ALTER TABLE ONLY fleet_epoch
    ADD CONSTRAINT fleet_epoch_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY fleet_plan
    ADD CONSTRAINT fleet_plan_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY fleet_registered
    ADD CONSTRAINT fleet_registered_pkey PRIMARY KEY (kind, name);

ALTER TABLE ONLY journal_attempts
    ADD CONSTRAINT journal_attempts_pkey PRIMARY KEY (request_id, fencing_token);

ALTER TABLE ONLY journal_epoch
    ADD CONSTRAINT journal_epoch_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY journal_pinned_inputs
    ADD CONSTRAINT journal_pinned_inputs_pkey PRIMARY KEY (request_id, place);

ALTER TABLE ONLY journal_pins
    ADD CONSTRAINT journal_pins_pkey PRIMARY KEY (request_id);

ALTER TABLE ONLY journal_plan
    ADD CONSTRAINT journal_plan_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY journal_requests
    ADD CONSTRAINT journal_requests_pkey PRIMARY KEY (request_id);

ALTER TABLE ONLY journal_requests
    ADD CONSTRAINT journal_requests_tenant_idempotency_key_key UNIQUE (tenant, idempotency_key);

ALTER TABLE ONLY journal_spool
    ADD CONSTRAINT journal_spool_pkey PRIMARY KEY (key);

ALTER TABLE ONLY journal_webhooks
    ADD CONSTRAINT journal_webhooks_pkey PRIMARY KEY (request_id);

ALTER TABLE ONLY schema_versions
    ADD CONSTRAINT schema_versions_pkey PRIMARY KEY (component);

ALTER TABLE ONLY tenant_book
    ADD CONSTRAINT tenant_book_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY tenant_departures
    ADD CONSTRAINT tenant_departures_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY tenant_keys
    ADD CONSTRAINT tenant_keys_digest_key UNIQUE (digest);

ALTER TABLE ONLY tenant_keys
    ADD CONSTRAINT tenant_keys_pkey PRIMARY KEY (key_id);

ALTER TABLE ONLY tenant_usage
    ADD CONSTRAINT tenant_usage_pkey PRIMARY KEY (tenant, hour_at, counter);

ALTER TABLE ONLY tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (tenant);

CREATE INDEX cache_entries_age ON cache_entries USING btree (sequence) WHERE (doomed_at IS NULL);

CREATE INDEX cache_entries_doomed ON cache_entries USING btree (doomed_at) WHERE (doomed_at IS NOT NULL);

CREATE INDEX cache_entries_rank ON cache_entries USING btree (tenant, rank_score, rank_tie, sequence, size_bytes) WHERE (doomed_at IS NULL);

CREATE INDEX cache_entries_unindexed ON cache_entries USING btree (sequence) WHERE ((indexed = 0) AND (doomed_at IS NULL));

CREATE INDEX cache_grants_expiry ON cache_grants USING btree (expires_at);

CREATE INDEX cache_grants_open ON cache_grants USING btree (tenant) WHERE (entry_id IS NULL);

CREATE INDEX cache_objects_doomed ON cache_objects USING btree (delete_after) WHERE (delete_after IS NOT NULL);

CREATE INDEX cache_objects_entry ON cache_objects USING btree (entry_id);

CREATE INDEX cache_objects_grant ON cache_objects USING btree (grant_id);

CREATE INDEX cache_objects_rank ON cache_objects USING btree (tenant, rank_score, rank_tie, key) WHERE ((entry_id IS NOT NULL) AND (delete_after IS NULL));

CREATE INDEX cache_pins_expiry ON cache_pins USING btree (expires_at);

CREATE INDEX cache_pins_key ON cache_pins USING btree (key, expires_at);

CREATE UNIQUE INDEX cache_quality_samples_number ON cache_quality_samples USING btree (encoder_digest, model_digest, reference_model_digest, from_image, saved_ppm, number);

CREATE INDEX journal_finished ON journal_requests USING btree (finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX journal_kept ON journal_requests USING btree (tenant, finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX journal_listed ON journal_requests USING btree (tenant, accepted_at, request_id);

CREATE INDEX journal_pictures ON journal_requests USING btree (tenant, image_size_bytes, image_key) WHERE ((image_key IS NOT NULL) AND (image_key <> ''::text));

CREATE INDEX journal_pinned_keys ON journal_pinned_inputs USING btree (key);

CREATE INDEX journal_pins_tenant ON journal_pins USING btree (tenant, expires_at, size_bytes);

CREATE INDEX journal_results ON journal_requests USING btree (image_key) WHERE (image_key IS NOT NULL);

CREATE INDEX journal_unfinished ON journal_requests USING btree (accepted_at) WHERE (finished_at IS NULL);

CREATE INDEX journal_webhooks_pending ON journal_webhooks USING btree (next_at) WHERE (state = 'pending'::text);

CREATE INDEX tenant_departures_name ON tenant_departures USING btree (tenant, deleted_at);

CREATE INDEX tenant_keys_of ON tenant_keys USING btree (tenant, created_at);

CREATE INDEX tenant_usage_hours ON tenant_usage USING btree (hour_at);

CREATE TRIGGER cache_entries_held AFTER INSERT OR DELETE OR UPDATE OF size_bytes, doomed_at ON cache_entries FOR EACH ROW EXECUTE FUNCTION cache_entries_held();

ALTER TABLE ONLY journal_attempts
    ADD CONSTRAINT journal_attempts_request_id_fkey FOREIGN KEY (request_id) REFERENCES journal_requests(request_id) ON DELETE CASCADE;

ALTER TABLE ONLY journal_pinned_inputs
    ADD CONSTRAINT journal_pinned_inputs_request_id_fkey FOREIGN KEY (request_id) REFERENCES journal_pins(request_id) ON DELETE CASCADE;

ALTER TABLE ONLY journal_pins
    ADD CONSTRAINT journal_pins_request_id_fkey FOREIGN KEY (request_id) REFERENCES journal_requests(request_id) ON DELETE CASCADE;

ALTER TABLE ONLY journal_webhooks
    ADD CONSTRAINT journal_webhooks_request_id_fkey FOREIGN KEY (request_id) REFERENCES journal_requests(request_id) ON DELETE CASCADE;

ALTER TABLE ONLY tenant_keys
    ADD CONSTRAINT tenant_keys_tenant_fkey FOREIGN KEY (tenant) REFERENCES tenants(tenant) ON DELETE CASCADE;
