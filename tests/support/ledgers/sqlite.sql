BEGIN TRANSACTION;
CREATE TABLE cache_entries (
                entry_id TEXT PRIMARY KEY,
                pool TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                sequence BIGINT NOT NULL,
                ancestor_depth BIGINT NOT NULL,
                text_vector BLOB NOT NULL,
                image_vector BLOB,
                object_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL,
                indexed BIGINT NOT NULL,
                doomed_at DOUBLE PRECISION
            , tenant TEXT NOT NULL DEFAULT '', rank_score DOUBLE PRECISION NOT NULL DEFAULT 0, rank_tie BIGINT NOT NULL DEFAULT 0, request_id TEXT NOT NULL DEFAULT '', repeat_key TEXT NOT NULL DEFAULT '');
INSERT INTO "cache_entries" VALUES('entry','pool',1.0,3,2,X'0000803F00000000',NULL,1,10,1,NULL,'tenant',1.0,3,'r1','');
CREATE TABLE cache_grants (
                grant_id TEXT PRIMARY KEY,
                pool TEXT NOT NULL,
                tenant TEXT NOT NULL,
                scope_digest TEXT NOT NULL,
                request_id TEXT NOT NULL,
                fencing_token BIGINT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                entry_id TEXT
            );
INSERT INTO "cache_grants" VALUES('open','pool','tenant','scope','r2',7,3600000000.0,NULL);
CREATE TABLE cache_holdings (
                tenant TEXT PRIMARY KEY,
                entry_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL
            );
INSERT INTO "cache_holdings" VALUES('tenant',1,10);
CREATE TABLE cache_objects (
                key TEXT PRIMARY KEY,
                grant_id TEXT NOT NULL,
                resume_step BIGINT,
                entry_id TEXT,
                sigma DOUBLE PRECISION,
                digest TEXT,
                size_bytes BIGINT,
                delete_after DOUBLE PRECISION
            , compatibility_key TEXT NOT NULL DEFAULT '', tenant TEXT NOT NULL DEFAULT '', saved_steps DOUBLE PRECISION NOT NULL DEFAULT 1, added_tick BIGINT NOT NULL DEFAULT 0, used_tick BIGINT NOT NULL DEFAULT 0, use_count BIGINT NOT NULL DEFAULT 0, faded_uses DOUBLE PRECISION NOT NULL DEFAULT 1, rank_score DOUBLE PRECISION NOT NULL DEFAULT 0, rank_tie BIGINT NOT NULL DEFAULT 0);
INSERT INTO "cache_objects" VALUES('cache/a/5','gone',5,'entry',0.5,'sha256:01d448afd928065458cf670b60f5a594d735af0172c8d67f22a81680132681ca',10,NULL,'key','tenant',5.0,1,1,1,1.0,1.0,0);
INSERT INTO "cache_objects" VALUES('cache/a/10','gone',10,NULL,0.2,'sha256:01d448afd928065458cf670b60f5a594d735af0172c8d67f22a81680132681ca',10,5.0,'key','tenant',5.0,1,1,1,1.0,1.0,0);
CREATE TABLE cache_pins (
                tenant TEXT NOT NULL,
                request_id TEXT NOT NULL,
                key TEXT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (tenant, request_id, key)
            );
INSERT INTO "cache_pins" VALUES('tenant','r3','cache/a/10',3600000000.0);
CREATE TABLE cache_quality_samples (
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
            );
CREATE TABLE cache_quality_thresholds (
                encoder_digest TEXT NOT NULL,
                model_digest TEXT NOT NULL,
                reference_model_digest TEXT NOT NULL,
                from_image BIGINT NOT NULL,
                saved_ppm BIGINT NOT NULL,
                similarity DOUBLE PRECISION NOT NULL,
                moved_at_number BIGINT NOT NULL,
                sample_count BIGINT NOT NULL,
                PRIMARY KEY (encoder_digest, model_digest, reference_model_digest, from_image, saved_ppm)
            );
CREATE TABLE cache_state (
                singleton BIGINT PRIMARY KEY,
                cache_id TEXT NOT NULL,
                encoder_digest TEXT,
                dimension_count BIGINT,
                sequence BIGINT NOT NULL,
                entry_count BIGINT NOT NULL,
                object_count BIGINT NOT NULL,
                size_bytes BIGINT NOT NULL
            , tick BIGINT NOT NULL DEFAULT 0, eviction_rule TEXT NOT NULL DEFAULT '');
INSERT INTO "cache_state" VALUES(1,'id','e',2,3,1,1,10,4,'fifo');
CREATE TABLE cache_tenant_limits (tenant TEXT PRIMARY KEY, size_bytes BIGINT NOT NULL);
INSERT INTO "cache_tenant_limits" VALUES('tenant',77);
CREATE TABLE cache_use_batches (
                source TEXT PRIMARY KEY,
                number BIGINT NOT NULL,
                noted_at DOUBLE PRECISION NOT NULL
            );
CREATE TABLE fleet_epoch (
                singleton BIGINT PRIMARY KEY,
                epoch BIGINT NOT NULL,
                controller_id TEXT NOT NULL,
                beat BIGINT NOT NULL
            );
INSERT INTO "fleet_epoch" VALUES(1,0,'',0);
CREATE TABLE fleet_plan (
                singleton BIGINT PRIMARY KEY,
                leader_epoch BIGINT NOT NULL,
                sequence BIGINT NOT NULL,
                plan BLOB NOT NULL
            );
INSERT INTO "fleet_plan" VALUES(1,2,3,X'00706C616E');
CREATE TABLE fleet_registered (
                kind TEXT NOT NULL,
                name TEXT NOT NULL,
                digest TEXT NOT NULL,
                document TEXT NOT NULL,
                registered_at DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (kind, name)
            );
INSERT INTO "fleet_registered" VALUES('model','m','sha256:m','{}',1800000000.0);
CREATE TABLE journal_attempts (
                request_id TEXT NOT NULL REFERENCES journal_requests (request_id) ON DELETE CASCADE,
                fencing_token BIGINT NOT NULL,
                attempt_number BIGINT NOT NULL,
                frontdoor_id TEXT NOT NULL,
                frontdoor_epoch BIGINT NOT NULL,
                worker_id TEXT NOT NULL,
                started_at DOUBLE PRECISION NOT NULL, cascade_stage BIGINT NOT NULL DEFAULT 0, handed_picture BLOB,
                PRIMARY KEY (request_id, fencing_token)
            );
INSERT INTO "journal_attempts" VALUES('open',5,1,'frontdoor-1',1,'w',1800000000.0,1,X'00696D616765');
INSERT INTO "journal_attempts" VALUES('done',6,1,'frontdoor-1',1,'w',1800000000.0,1,NULL);
CREATE TABLE journal_epoch (
                singleton BIGINT PRIMARY KEY,
                epoch BIGINT NOT NULL,
                frontdoor_id TEXT NOT NULL
            , beat BIGINT NOT NULL DEFAULT 0, journal_id TEXT NOT NULL DEFAULT '', counted_s DOUBLE PRECISION NOT NULL DEFAULT 0, wall_s DOUBLE PRECISION NOT NULL DEFAULT 0, boot_s DOUBLE PRECISION NOT NULL DEFAULT 0, boot_id TEXT NOT NULL DEFAULT '');
INSERT INTO "journal_epoch" VALUES(1,0,'',0,'',0.0,0.0,0.0,'');
CREATE TABLE journal_pinned_inputs (
                request_id TEXT NOT NULL REFERENCES journal_pins (request_id) ON DELETE CASCADE,
                place TEXT NOT NULL,
                key TEXT NOT NULL,
                digest TEXT NOT NULL,
                size_bytes BIGINT NOT NULL,
                PRIMARY KEY (request_id, place)
            );
INSERT INTO "journal_pinned_inputs" VALUES('done','init_image','inputs/a','sha256:b',7);
CREATE TABLE journal_pins (
                request_id TEXT PRIMARY KEY REFERENCES journal_requests (request_id) ON DELETE CASCADE,
                tenant TEXT NOT NULL,
                expires_at DOUBLE PRECISION NOT NULL,
                size_bytes BIGINT NOT NULL
            );
INSERT INTO "journal_pins" VALUES('done','tenant',1800000009.0,5000);
CREATE TABLE journal_plan (singleton BIGINT PRIMARY KEY, plan BLOB NOT NULL);
INSERT INTO "journal_plan" VALUES(1,X'00706C616E');
CREATE TABLE journal_requests (
                request_id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                idempotency_key TEXT,
                body BLOB NOT NULL,
                body_hash TEXT NOT NULL,
                accepted_at DOUBLE PRECISION NOT NULL,
                deadline_at DOUBLE PRECISION,
                frontdoor_id TEXT NOT NULL,
                frontdoor_epoch BIGINT NOT NULL,
                state TEXT NOT NULL,
                route BLOB,
                newest_token BIGINT NOT NULL,
                newest_epoch BIGINT NOT NULL,
                attempt_count BIGINT NOT NULL,
                image_key TEXT,
                image_digest TEXT,
                image_size_bytes BIGINT,
                image_format TEXT,
                width_px BIGINT,
                height_px BIGINT,
                provenance BLOB,
                error_reason TEXT NOT NULL,
                error_message TEXT NOT NULL,
                finished_at DOUBLE PRECISION, cascade_stage BIGINT NOT NULL DEFAULT 0, body_format BIGINT NOT NULL DEFAULT 0, detached BIGINT NOT NULL DEFAULT 0, accepted_counted_s DOUBLE PRECISION,
                UNIQUE (tenant, idempotency_key)
            );
INSERT INTO "journal_requests" VALUES('open','tenant','k1',X'00626F6479','hash',1800000000.0,1800000060.0,'frontdoor-1',1,'running',X'00726F757465',5,1,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'','',NULL,1,1,1,NULL);
INSERT INTO "journal_requests" VALUES('done','tenant','k2',X'00626F6479','hash',1800000000.0,1800000060.0,'frontdoor-1',1,'completed',NULL,6,1,1,'results/a','sha256:a',3,'png',64,48,X'0070726F76656E616E6365','','',105.0,1,1,1,NULL);
CREATE TABLE journal_spool (
                key TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                digest TEXT NOT NULL,
                size_bytes BIGINT NOT NULL,
                data BLOB NOT NULL
            );
INSERT INTO "journal_spool" VALUES('results/w','tenant','sha256:w',2,X'0077');
CREATE TABLE journal_webhooks (
                request_id TEXT PRIMARY KEY REFERENCES journal_requests (request_id) ON DELETE CASCADE,
                url TEXT NOT NULL,
                state TEXT NOT NULL,
                try_count BIGINT NOT NULL,
                next_at DOUBLE PRECISION NOT NULL,
                error TEXT NOT NULL
            , told_id TEXT NOT NULL DEFAULT '', last_id TEXT NOT NULL DEFAULT '', request_count BIGINT NOT NULL DEFAULT 0);
INSERT INTO "journal_webhooks" VALUES('open','https://a','pending',2,0.0,'e','','',0);
CREATE TABLE schema_versions (component TEXT PRIMARY KEY, version BIGINT NOT NULL);
INSERT INTO "schema_versions" VALUES('journal',12);
INSERT INTO "schema_versions" VALUES('cache',11);
INSERT INTO "schema_versions" VALUES('tenants',2);
INSERT INTO "schema_versions" VALUES('fleet',1);
CREATE TABLE tenant_book (singleton BIGINT PRIMARY KEY, revision BIGINT NOT NULL);
INSERT INTO "tenant_book" VALUES(1,1);
CREATE TABLE tenant_departures (
                tenant_id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL,
                quota TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                revision BIGINT NOT NULL,
                deleted_at DOUBLE PRECISION NOT NULL,
                purged_at DOUBLE PRECISION
            );
INSERT INTO "tenant_departures" VALUES('gone','gone','{}',1800000000.0,3,1800000000.0,NULL);
CREATE TABLE tenant_keys (
                key_id TEXT PRIMARY KEY,
                tenant TEXT NOT NULL REFERENCES tenants (tenant) ON DELETE CASCADE,
                digest TEXT NOT NULL UNIQUE,
                created_at DOUBLE PRECISION NOT NULL,
                expires_at DOUBLE PRECISION,
                revoked_at DOUBLE PRECISION
            );
CREATE TABLE tenant_usage (
                tenant TEXT NOT NULL,
                hour_at BIGINT NOT NULL,
                counter TEXT NOT NULL,
                amount DOUBLE PRECISION NOT NULL,
                PRIMARY KEY (tenant, hour_at, counter)
            );
CREATE TABLE tenants (
                tenant TEXT PRIMARY KEY,
                quota TEXT NOT NULL,
                created_at DOUBLE PRECISION NOT NULL,
                revision BIGINT NOT NULL
            , tenant_id TEXT NOT NULL DEFAULT '');
INSERT INTO "tenants" VALUES('acme','{}',1800000000.0,3,'acme');
CREATE INDEX journal_unfinished ON journal_requests (accepted_at) WHERE finished_at IS NULL;
CREATE INDEX journal_finished ON journal_requests (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX journal_kept ON journal_requests (tenant, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX journal_results ON journal_requests (image_key) WHERE image_key IS NOT NULL;
CREATE INDEX journal_pins_tenant ON journal_pins (tenant, expires_at, size_bytes);
CREATE INDEX journal_pinned_keys ON journal_pinned_inputs (key);
CREATE INDEX journal_listed ON journal_requests (tenant, accepted_at, request_id);
CREATE INDEX journal_webhooks_pending ON journal_webhooks (next_at) WHERE state = 'pending';
CREATE INDEX journal_pictures ON journal_requests (tenant, image_size_bytes, image_key)
                WHERE image_key IS NOT NULL AND image_key <> '';
CREATE INDEX cache_grants_expiry ON cache_grants (expires_at);
CREATE INDEX cache_entries_age ON cache_entries (sequence) WHERE doomed_at IS NULL;
CREATE INDEX cache_entries_unindexed ON cache_entries (sequence) WHERE indexed = 0 AND doomed_at IS NULL;
CREATE INDEX cache_entries_doomed ON cache_entries (doomed_at) WHERE doomed_at IS NOT NULL;
CREATE INDEX cache_objects_grant ON cache_objects (grant_id);
CREATE INDEX cache_objects_entry ON cache_objects (entry_id);
CREATE INDEX cache_objects_doomed ON cache_objects (delete_after) WHERE delete_after IS NOT NULL;
CREATE INDEX cache_entries_rank ON cache_entries (tenant, rank_score, rank_tie, sequence, size_bytes)
                WHERE doomed_at IS NULL;
CREATE INDEX cache_objects_rank ON cache_objects (tenant, rank_score, rank_tie, key)
                WHERE entry_id IS NOT NULL AND delete_after IS NULL;
CREATE INDEX cache_pins_key ON cache_pins (key, expires_at);
CREATE INDEX cache_pins_expiry ON cache_pins (expires_at);
CREATE UNIQUE INDEX cache_quality_samples_number ON cache_quality_samples
                (encoder_digest, model_digest, reference_model_digest, from_image, saved_ppm, number);
CREATE INDEX cache_grants_open ON cache_grants (tenant) WHERE entry_id IS NULL;
CREATE TRIGGER cache_entries_came AFTER INSERT ON cache_entries WHEN NEW.doomed_at IS NULL
            BEGIN INSERT INTO cache_holdings (tenant, entry_count, size_bytes) VALUES (NEW.tenant, 1, NEW.size_bytes)
    ON CONFLICT (tenant) DO UPDATE SET entry_count = cache_holdings.entry_count + 1,
    size_bytes = cache_holdings.size_bytes + NEW.size_bytes; END;
CREATE TRIGGER cache_entries_shrank AFTER UPDATE OF size_bytes ON cache_entries
            WHEN OLD.doomed_at IS NULL AND NEW.doomed_at IS NULL BEGIN UPDATE cache_holdings SET entry_count = entry_count - 1, size_bytes = size_bytes - OLD.size_bytes
    WHERE tenant = OLD.tenant; INSERT INTO cache_holdings (tenant, entry_count, size_bytes) VALUES (NEW.tenant, 1, NEW.size_bytes)
    ON CONFLICT (tenant) DO UPDATE SET entry_count = cache_holdings.entry_count + 1,
    size_bytes = cache_holdings.size_bytes + NEW.size_bytes; END;
CREATE TRIGGER cache_entries_doomed AFTER UPDATE OF doomed_at ON cache_entries
            WHEN OLD.doomed_at IS NULL AND NEW.doomed_at IS NOT NULL BEGIN UPDATE cache_holdings SET entry_count = entry_count - 1, size_bytes = size_bytes - OLD.size_bytes
    WHERE tenant = OLD.tenant; DELETE FROM cache_holdings WHERE tenant = OLD.tenant AND entry_count = 0; END;
CREATE TRIGGER cache_entries_went AFTER DELETE ON cache_entries WHEN OLD.doomed_at IS NULL
            BEGIN UPDATE cache_holdings SET entry_count = entry_count - 1, size_bytes = size_bytes - OLD.size_bytes
    WHERE tenant = OLD.tenant; DELETE FROM cache_holdings WHERE tenant = OLD.tenant AND entry_count = 0; END;
CREATE INDEX tenant_keys_of ON tenant_keys (tenant, created_at);
CREATE INDEX tenant_usage_hours ON tenant_usage (hour_at);
CREATE INDEX tenant_departures_name ON tenant_departures (tenant, deleted_at);
COMMIT;
