-- The ledger on Postgres, in the schema ads_pipeline. The migration executes this text; docs/schema-changes.md says
-- how it changes. Texts compare as bytes (COLLATE "C"), as on SQLite, whatever the server's locale is.
-- A fillfactor leaves room in each page for the new version of an updated row.

CREATE FUNCTION refuse_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation';
END
$$;

-- Every registered run. The ordinal is the order of registration, the only order between the runs of a partition.
CREATE TABLE runs (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    schema_version TEXT COLLATE "C",
    record_count BIGINT CHECK (record_count >= 0),
    payload_sha256 TEXT COLLATE "C" CHECK (length(payload_sha256) = 64),
    extracted_at TIMESTAMPTZ,
    registered_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    CONSTRAINT runs_ordinal_unique UNIQUE (source, customer_id, query_name, logical_date, ordinal),
    CONSTRAINT seal_facts_complete CHECK ((schema_version IS NULL) = (record_count IS NULL))
);

-- The state of each partition, with exactly the columns of its contract. Its row is the lock of the partition.
CREATE TABLE partition_state (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    status TEXT COLLATE "C" NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    current_run_id TEXT COLLATE "C",
    schema_version TEXT COLLATE "C",
    record_count BIGINT CHECK (record_count >= 0),
    updated_at TIMESTAMPTZ NOT NULL,
    error_message TEXT COLLATE "C" CHECK (length(error_message) BETWEEN 1 AND 2000),
    attempt_count INTEGER NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    PRIMARY KEY (source, customer_id, query_name, logical_date),
    FOREIGN KEY (source, customer_id, query_name, logical_date, current_run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id),
    CONSTRAINT current_run_complete CHECK (
        (current_run_id IS NULL) = (schema_version IS NULL) AND (current_run_id IS NULL) = (record_count IS NULL)
    ),
    CONSTRAINT success_has_current_run CHECK (
        status <> 'success' OR (current_run_id IS NOT NULL AND error_message IS NULL)
    ),
    CONSTRAINT failure_has_message CHECK (status <> 'failed' OR error_message IS NOT NULL),
    CONSTRAINT verdict_has_attempt CHECK (
        attempt_count >= 1 OR status = 'pending' AND current_run_id IS NULL AND error_message IS NULL
    )
) WITH (fillfactor = 70);

-- Every verdict, numbered within its partition. A rejection has its reason as JSON. payload_bytes and payload_sha256
-- describe the bytes that were judged. After the verdict, current_ordinal is the ordinal of the current run, and
-- message_ordinal the ordinal of the run that the state's error_message is about.
CREATE TABLE attempts (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 1),
    run_id TEXT COLLATE "C" NOT NULL,
    validation_id TEXT COLLATE "C" NOT NULL CHECK (length(validation_id) <= 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    outcome TEXT COLLATE "C" NOT NULL CHECK (outcome IN ('accepted', 'rejected')),
    effect TEXT COLLATE "C" NOT NULL,
    error_class TEXT COLLATE "C" CHECK (length(error_class) BETWEEN 1 AND 64),
    reason TEXT COLLATE "C" CHECK (length(reason) >= 1),
    rows_read BIGINT CHECK (rows_read >= 0),
    rows_failed BIGINT CHECK (rows_failed >= 0),
    payload_bytes BIGINT CHECK (payload_bytes >= 0),
    payload_sha256 TEXT COLLATE "C" CHECK (length(payload_sha256) = 64),
    judged_at TIMESTAMPTZ NOT NULL,
    current_ordinal INTEGER,
    message_ordinal INTEGER,
    cost_micros BIGINT,
    conversions DOUBLE PRECISION,
    conversions_value DOUBLE PRECISION,
    PRIMARY KEY (source, customer_id, query_name, logical_date, attempt_no),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id),
    CONSTRAINT attempts_verdict_unique UNIQUE (source, customer_id, query_name, logical_date, run_id, validation_id),
    CONSTRAINT effect_matches_outcome CHECK (
        outcome = 'accepted' AND effect IN ('promoted', 'confirmed', 'superseded')
        OR outcome = 'rejected' AND effect IN ('set_aside', 'failed', 'demoted')
    ),
    CONSTRAINT effect_matches_current_run CHECK (
        effect = 'failed'
        OR effect IN ('promoted', 'confirmed', 'demoted') AND NOT (ordinal IS DISTINCT FROM current_ordinal)
        OR effect = 'superseded' AND coalesce(ordinal < current_ordinal, FALSE)
        OR effect = 'set_aside' AND coalesce(ordinal <> current_ordinal, FALSE)
    ),
    CONSTRAINT rejection_has_reason CHECK (
        (outcome = 'rejected') = (error_class IS NOT NULL) AND (outcome = 'rejected') = (reason IS NOT NULL)
    ),
    CONSTRAINT acceptance_has_payload CHECK (
        outcome = 'rejected'
        OR rows_read IS NOT NULL AND payload_bytes IS NOT NULL AND payload_sha256 IS NOT NULL
    )
);

-- The run that readers see of a partition. It is written after the rows are in the warehouse.
CREATE TABLE warehouse_pointer (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    schema_version TEXT COLLATE "C" NOT NULL,
    record_count BIGINT NOT NULL CHECK (record_count >= 0),
    table_version BIGINT NOT NULL CHECK (table_version >= 0),
    availability TEXT COLLATE "C" NOT NULL CHECK (availability IN ('published', 'unavailable')),
    changed_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
);

-- The first publication of each run. Publishing it again adds no row.
CREATE TABLE load_records (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    schema_version TEXT COLLATE "C" NOT NULL,
    record_count BIGINT NOT NULL CHECK (record_count >= 0),
    table_version BIGINT NOT NULL CHECK (table_version >= 0),
    loaded_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
);

-- Unfinished demotions and withdrawals: the rows are hidden at once. When the warehouse has removed them, the verdict is
-- recorded, or the control action that `request` describes as JSON.
CREATE TABLE demotions (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    run_id TEXT COLLATE "C" NOT NULL,
    validation_id TEXT COLLATE "C" NOT NULL CHECK (length(validation_id) <= 96),
    reason TEXT COLLATE "C" NOT NULL CHECK (length(reason) >= 1),
    rows_read BIGINT CHECK (rows_read >= 0),
    payload_bytes BIGINT CHECK (payload_bytes >= 0),
    payload_sha256 TEXT COLLATE "C" CHECK (length(payload_sha256) = 64),
    request TEXT COLLATE "C" CHECK (length(request) >= 1),
    started_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
);
CREATE INDEX partition_state_by_date ON partition_state (source, query_name, logical_date, customer_id);
CREATE INDEX partition_state_not_success ON partition_state (source, customer_id, query_name, logical_date, status)
WHERE status <> 'success';
CREATE INDEX partition_state_failed ON partition_state (source, customer_id, query_name, logical_date)
WHERE status = 'failed';
CREATE INDEX attempts_rejected ON attempts (source, customer_id, query_name, logical_date, ordinal, attempt_no)
WHERE outcome = 'rejected';

-- No verdict and no control action updates a row like this, so no connection may.
CREATE TRIGGER partition_state_invalid_update BEFORE UPDATE ON partition_state
FOR EACH ROW WHEN (
    NEW.source <> OLD.source OR NEW.customer_id <> OLD.customer_id
    OR NEW.query_name <> OLD.query_name OR NEW.logical_date <> OLD.logical_date
    OR NEW.updated_at <= OLD.updated_at
    OR NEW.attempt_count < OLD.attempt_count
    OR OLD.current_run_id IS NOT NULL AND NEW.current_run_id IS NULL
    OR NEW.attempt_count > OLD.attempt_count AND NEW.status = 'pending'
    OR NEW.attempt_count = OLD.attempt_count AND (
        NEW.status <> 'pending' OR OLD.status = 'pending'
        OR NEW.current_run_id IS DISTINCT FROM OLD.current_run_id
        OR NEW.schema_version IS DISTINCT FROM OLD.schema_version
        OR NEW.record_count IS DISTINCT FROM OLD.record_count
        OR NEW.error_message IS DISTINCT FROM OLD.error_message
    )
) EXECUTE FUNCTION refuse_write();
CREATE TRIGGER partition_state_no_delete BEFORE DELETE OR TRUNCATE ON partition_state EXECUTE FUNCTION refuse_write();

-- A judged state follows from its logs: every counted attempt exists, and the last one led to this status and
-- current run. Counting is one scan of an index, which is cheaper than a search for each of these.
CREATE FUNCTION inserted_judged_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        (
            SELECT count(*) FROM attempts AS a
            WHERE a.source = NEW.source AND a.customer_id = NEW.customer_id
              AND a.query_name = NEW.query_name AND a.logical_date = NEW.logical_date
              AND a.attempt_no <= NEW.attempt_count
              AND (a.attempt_no < NEW.attempt_count
                OR NEW.status = CASE WHEN a.effect IN ('failed', 'demoted') THEN 'failed' ELSE 'success' END
                    AND CASE WHEN NEW.current_run_id IS NULL THEN a.current_ordinal IS NULL
                    ELSE a.current_ordinal = (
                        SELECT r.ordinal FROM runs AS r
                        WHERE r.source = NEW.source AND r.customer_id = NEW.customer_id
                          AND r.query_name = NEW.query_name AND r.logical_date = NEW.logical_date
                          AND r.run_id = NEW.current_run_id AND r.schema_version = NEW.schema_version
                          AND r.record_count = NEW.record_count) END)
        ) = NEW.attempt_count
    ) THEN
        RAISE EXCEPTION 'partition_state: no attempt or control action led to this state'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER inserted_judged_state AFTER INSERT ON partition_state
FOR EACH ROW WHEN (NEW.attempt_count > 0 AND NEW.status <> 'pending') EXECUTE FUNCTION inserted_judged_state();

-- Checked for all rows of a statement at once: a call per row costs 13 µs. The plan is kept. Of a plan made for one
-- row, a nested loop would compare each pair of a thousand rows.
CREATE FUNCTION updated_judged_state() RETURNS trigger LANGUAGE plpgsql SET enable_nestloop = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM new_rows AS new_row
        LEFT JOIN old_rows AS old_row USING (source, customer_id, query_name, logical_date)
        WHERE (new_row.attempt_count > 0 AND new_row.status <> 'pending') IS NOT FALSE AND (
            (
                SELECT count(*) FROM attempts AS a
                WHERE a.source = new_row.source AND a.customer_id = new_row.customer_id
                  AND a.query_name = new_row.query_name AND a.logical_date = new_row.logical_date
                  AND a.attempt_no > old_row.attempt_count
                  AND a.attempt_no <= new_row.attempt_count
                  AND (a.attempt_no < new_row.attempt_count
                    OR new_row.status = CASE WHEN a.effect IN ('failed', 'demoted') THEN 'failed' ELSE 'success' END
                        AND CASE WHEN new_row.current_run_id IS NULL THEN a.current_ordinal IS NULL
                        ELSE a.current_ordinal = (
                            SELECT r.ordinal FROM runs AS r
                            WHERE r.source = new_row.source AND r.customer_id = new_row.customer_id
                              AND r.query_name = new_row.query_name AND r.logical_date = new_row.logical_date
                              AND r.run_id = new_row.current_run_id AND r.schema_version = new_row.schema_version
                              AND r.record_count = new_row.record_count) END)
            ) = new_row.attempt_count - old_row.attempt_count
        ) IS NOT TRUE
    ) THEN
        RAISE EXCEPTION 'partition_state: no attempt or control action led to this state'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER updated_judged_state AFTER UPDATE ON partition_state
REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
FOR EACH STATEMENT EXECUTE FUNCTION updated_judged_state();

-- Only a control action after the last attempt makes a judged partition pending.
CREATE FUNCTION inserted_pending_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        (
            SELECT count(*) FROM attempts AS a
            WHERE a.source = NEW.source AND a.customer_id = NEW.customer_id
              AND a.query_name = NEW.query_name AND a.logical_date = NEW.logical_date
              AND a.attempt_no <= NEW.attempt_count
              AND (a.attempt_no < NEW.attempt_count
                OR CASE WHEN NEW.current_run_id IS NULL THEN a.current_ordinal IS NULL
                    ELSE a.current_ordinal = (
                        SELECT r.ordinal FROM runs AS r
                        WHERE r.source = NEW.source AND r.customer_id = NEW.customer_id
                          AND r.query_name = NEW.query_name AND r.logical_date = NEW.logical_date
                          AND r.run_id = NEW.current_run_id AND r.schema_version = NEW.schema_version
                          AND r.record_count = NEW.record_count) END)
        ) = NEW.attempt_count
        AND EXISTS (
            SELECT 1 FROM control_action_partitions AS p JOIN control_actions AS c ON c.action_id = p.action_id
            WHERE p.source = NEW.source AND p.customer_id = NEW.customer_id
              AND p.query_name = NEW.query_name AND p.logical_date = NEW.logical_date
              AND p.attempt_no = NEW.attempt_count AND c.action IN ('requeue', 'withdraw'))
    ) THEN
        RAISE EXCEPTION 'partition_state: no attempt or control action led to this state'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER inserted_pending_state AFTER INSERT ON partition_state
FOR EACH ROW WHEN (NEW.attempt_count > 0 AND NEW.status = 'pending') EXECUTE FUNCTION inserted_pending_state();

CREATE FUNCTION updated_pending_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        EXISTS (
            SELECT 1 FROM control_action_partitions AS p JOIN control_actions AS c ON c.action_id = p.action_id
            WHERE p.source = NEW.source AND p.customer_id = NEW.customer_id
              AND p.query_name = NEW.query_name AND p.logical_date = NEW.logical_date
              AND p.attempt_no = NEW.attempt_count AND c.action IN ('requeue', 'withdraw'))
    ) THEN
        RAISE EXCEPTION 'partition_state: no attempt or control action led to this state'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER updated_pending_state AFTER UPDATE ON partition_state
FOR EACH ROW WHEN (NEW.attempt_count > 0 AND NEW.status = 'pending') EXECUTE FUNCTION updated_pending_state();

CREATE TRIGGER runs_no_update_delete BEFORE UPDATE OR DELETE OR TRUNCATE ON runs EXECUTE FUNCTION refuse_write();
CREATE TRIGGER attempts_no_update_delete BEFORE UPDATE OR DELETE OR TRUNCATE ON attempts
EXECUTE FUNCTION refuse_write();
CREATE TRIGGER load_records_no_update_delete BEFORE UPDATE OR DELETE OR TRUNCATE ON load_records
EXECUTE FUNCTION refuse_write();

-- A loaded run was accepted. A published pointer is at a loaded run of a success; it moves to the current run.
CREATE FUNCTION loaded_run_was_accepted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        EXISTS (
            SELECT 1 FROM attempts AS a
            WHERE a.source = NEW.source AND a.customer_id = NEW.customer_id
              AND a.query_name = NEW.query_name AND a.logical_date = NEW.logical_date
              AND a.run_id = NEW.run_id AND a.outcome = 'accepted')
        AND EXISTS (
            SELECT 1 FROM runs AS r
            WHERE r.source = NEW.source AND r.customer_id = NEW.customer_id
              AND r.query_name = NEW.query_name AND r.logical_date = NEW.logical_date
              AND r.run_id = NEW.run_id AND r.schema_version = NEW.schema_version
              AND r.record_count = NEW.record_count)
    ) THEN
        RAISE EXCEPTION 'load_records: no verdict accepted this run'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER loaded_run_was_accepted AFTER INSERT ON load_records
FOR EACH ROW EXECUTE FUNCTION loaded_run_was_accepted();

CREATE FUNCTION pointer_is_readable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        EXISTS (
            SELECT 1 FROM load_records AS l
            WHERE l.source = NEW.source AND l.customer_id = NEW.customer_id
              AND l.query_name = NEW.query_name AND l.logical_date = NEW.logical_date
              AND l.run_id = NEW.run_id AND l.schema_version = NEW.schema_version
              AND l.record_count = NEW.record_count)
        AND EXISTS (
            SELECT 1 FROM partition_state AS s
            WHERE s.source = NEW.source AND s.customer_id = NEW.customer_id
              AND s.query_name = NEW.query_name AND s.logical_date = NEW.logical_date
              AND s.status = 'success')
    ) THEN
        RAISE EXCEPTION 'warehouse_pointer: the run is not loaded or not readable'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER inserted_pointer_is_readable AFTER INSERT ON warehouse_pointer
FOR EACH ROW WHEN (NEW.availability = 'published') EXECUTE FUNCTION pointer_is_readable();

CREATE TRIGGER updated_pointer_is_readable AFTER UPDATE ON warehouse_pointer
FOR EACH ROW WHEN (NEW.availability = 'published') EXECUTE FUNCTION pointer_is_readable();

CREATE FUNCTION moved_pointer_is_current() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        EXISTS (
            SELECT 1 FROM load_records AS l
            WHERE l.source = NEW.source AND l.customer_id = NEW.customer_id
              AND l.query_name = NEW.query_name AND l.logical_date = NEW.logical_date
              AND l.run_id = NEW.run_id AND l.schema_version = NEW.schema_version
              AND l.record_count = NEW.record_count)
        AND EXISTS (
            SELECT 1 FROM partition_state AS s
            WHERE s.source = NEW.source AND s.customer_id = NEW.customer_id
              AND s.query_name = NEW.query_name AND s.logical_date = NEW.logical_date
              AND s.status = 'success' AND s.current_run_id = NEW.run_id)
    ) THEN
        RAISE EXCEPTION 'warehouse_pointer: the run is not loaded or not readable'
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER moved_pointer_is_current AFTER UPDATE ON warehouse_pointer
FOR EACH ROW WHEN (NEW.availability = 'published' AND (NEW.run_id <> OLD.run_id OR OLD.availability <> 'published'))
EXECUTE FUNCTION moved_pointer_is_current();

-- What operators and the retry policy did, by whom and why.
CREATE TABLE control_actions (
    action_id TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(action_id) BETWEEN 1 AND 96),
    action TEXT COLLATE "C" NOT NULL,
    operator TEXT COLLATE "C" NOT NULL CHECK (length(operator) >= 1),
    command TEXT COLLATE "C" NOT NULL,
    filters TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C" NOT NULL CHECK (length(reason) >= 1),
    partitions_changed INTEGER NOT NULL CHECK (partitions_changed >= 0),
    performed_at TIMESTAMPTZ NOT NULL
);

-- The partitions that an action changed, with their status and number of attempts before it. The number gives actions
-- and verdicts one order, also when a clock went back.
CREATE TABLE control_action_partitions (
    action_id TEXT COLLATE "C" NOT NULL REFERENCES control_actions (action_id),
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    status_before TEXT COLLATE "C" CHECK (status_before IN ('pending', 'success', 'failed')),
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    PRIMARY KEY (action_id, source, customer_id, query_name, logical_date)
);

-- One for each engine run, extended by its heartbeats. The claims of the run are valid while its lease is.
CREATE TABLE leases (
    engine_run_id TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    opened_at TIMESTAMPTZ NOT NULL,
    heartbeat_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    ended_at TIMESTAMPTZ
) WITH (fillfactor = 50);

-- The run that last claimed a partition. The fence grows whenever another run claims it.
CREATE TABLE claims (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    engine_run_id TEXT COLLATE "C" NOT NULL REFERENCES leases (engine_run_id),
    fence BIGINT NOT NULL CHECK (fence >= 1),
    claimed_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (source, customer_id, query_name, logical_date)
) WITH (fillfactor = 50);

-- The next run of a partition: the retry planned after its last failure, and the request for a run. The next failure
-- replaces the plan; without due_at there is no automatic retry. The request is open until the next verdict, when
-- attempt_count exceeds requested_no. Failed fetches up to released_at do not count, and neither do those up to
-- recovered_at that an outage can cause. Whether a partition is terminal is computed, not stored.
CREATE TABLE retry_queue (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    attempt_no INTEGER CHECK (attempt_no >= 0),
    failures INTEGER CHECK (failures >= 0),
    error_class TEXT COLLATE "C" CHECK (length(error_class) BETWEEN 1 AND 64),
    failed_at TIMESTAMPTZ,
    wait_until TIMESTAMPTZ,
    due_at TIMESTAMPTZ,
    why TEXT COLLATE "C" CHECK (length(why) BETWEEN 1 AND 500),
    planned_at TIMESTAMPTZ,
    kind TEXT COLLATE "C" CHECK (kind IN ('retry', 'backfill', 'reprocess')),
    action_id TEXT COLLATE "C" REFERENCES control_actions (action_id),
    requested_no INTEGER CHECK (requested_no >= 0),
    requested_at TIMESTAMPTZ,
    released_at TIMESTAMPTZ,
    recovered_at TIMESTAMPTZ,
    PRIMARY KEY (source, customer_id, query_name, logical_date),
    CONSTRAINT plan_complete CHECK (
        (failed_at IS NULL) = (attempt_no IS NULL) AND (failed_at IS NULL) = (failures IS NULL)
        AND (failed_at IS NULL) = (why IS NULL) AND (failed_at IS NULL) = (planned_at IS NULL)
        AND (failed_at IS NOT NULL OR (error_class IS NULL AND wait_until IS NULL AND due_at IS NULL))
    ),
    CONSTRAINT request_complete CHECK (
        (requested_at IS NULL) = (kind IS NULL) AND (requested_at IS NULL) = (action_id IS NULL)
        AND (requested_at IS NULL) = (requested_no IS NULL)
    ),
    CONSTRAINT plan_or_request CHECK (failed_at IS NOT NULL OR requested_at IS NOT NULL),
    CONSTRAINT due_after_failure CHECK (due_at >= failed_at)
) WITH (fillfactor = 50);

-- Customers, queries and whole sources that are not fetched until an operator releases them.
CREATE TABLE parkings (
    source TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL CHECK (scope IN ('customer', 'query', 'source')),
    name TEXT COLLATE "C" NOT NULL,
    error_class TEXT COLLATE "C" NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    why TEXT COLLATE "C" NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    parked_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (source, scope, name)
);
CREATE INDEX control_actions_by_time ON control_actions (performed_at, action_id);
CREATE INDEX control_actions_acknowledging ON control_actions (action_id)
WHERE action IN ('acknowledge', 'mark_terminal');
CREATE INDEX control_action_partitions_by_key ON control_action_partitions
(source, customer_id, query_name, logical_date);
CREATE INDEX leases_open ON leases (expires_at) WHERE ended_at IS NULL;
CREATE INDEX claims_by_run ON claims (engine_run_id);
CREATE INDEX retry_queue_due ON retry_queue (source, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX retry_queue_failed ON retry_queue (source, query_name, logical_date) WHERE failed_at IS NOT NULL;
CREATE INDEX retry_queue_requested ON retry_queue (source, requested_at) WHERE requested_at IS NOT NULL;

CREATE TRIGGER control_actions_no_update_delete BEFORE UPDATE OR DELETE OR TRUNCATE ON control_actions
EXECUTE FUNCTION refuse_write();
CREATE TRIGGER control_action_partitions_no_update_delete BEFORE UPDATE OR DELETE
    OR TRUNCATE ON control_action_partitions EXECUTE FUNCTION refuse_write();
CREATE TRIGGER leases_no_delete BEFORE DELETE OR TRUNCATE ON leases EXECUTE FUNCTION refuse_write();

CREATE TRIGGER leases_invalid_update BEFORE UPDATE ON leases
FOR EACH ROW WHEN ( NEW.engine_run_id <> OLD.engine_run_id OR NEW.opened_at <> OLD.opened_at
    OR NEW.expires_at < OLD.expires_at OR OLD.ended_at IS NOT NULL ) EXECUTE FUNCTION refuse_write();
CREATE TRIGGER claims_no_delete BEFORE DELETE OR TRUNCATE ON claims EXECUTE FUNCTION refuse_write();

CREATE TRIGGER claims_invalid_update BEFORE UPDATE ON claims
FOR EACH ROW WHEN (NEW.fence < OLD.fence OR NEW.fence = OLD.fence AND NEW.engine_run_id <> OLD.engine_run_id)
EXECUTE FUNCTION refuse_write();

-- The newest event of each run, and its snapshot, folded from the events up to projected_seq. The row is locked to
-- append events in order. Until the first fold there is no status.
CREATE TABLE run_head (
    engine_run_id TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    plan_version TEXT COLLATE "C" NOT NULL CHECK (length(plan_version) BETWEEN 1 AND 96),
    last_seq BIGINT NOT NULL CHECK (last_seq >= 0),
    last_at TIMESTAMPTZ NOT NULL,
    opened_at TIMESTAMPTZ NOT NULL,
    projected_seq BIGINT NOT NULL DEFAULT 0,
    payload_conflicts INTEGER NOT NULL DEFAULT 0 CHECK (payload_conflicts >= 0),
    retired_at TIMESTAMPTZ,
    status TEXT COLLATE "C" CHECK (status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')),
    steps TEXT COLLATE "C" NOT NULL DEFAULT '{}',
    started_at TIMESTAMPTZ,
    ended_at TIMESTAMPTZ,
    inconsistencies INTEGER NOT NULL DEFAULT 0 CHECK (inconsistencies >= 0),
    missing_events BIGINT NOT NULL DEFAULT 0 CHECK (missing_events >= 0),
    stale_since TIMESTAMPTZ,
    CONSTRAINT projected_seq_in_range CHECK (projected_seq BETWEEN 0 AND last_seq)
) WITH (fillfactor = 50);

-- The events of runs. Nothing changes or deletes one, unless its whole run is retired.
CREATE TABLE run_events (
    engine_run_id TEXT COLLATE "C" NOT NULL,
    run_seq BIGINT NOT NULL CHECK (run_seq >= 1),
    event_id TEXT COLLATE "C" NOT NULL CHECK (length(event_id) = 36),
    event_type TEXT COLLATE "C" NOT NULL CHECK (length(event_type) BETWEEN 1 AND 64),
    step_id TEXT COLLATE "C" CHECK (length(step_id) BETWEEN 1 AND 256),
    logical_attempt_id BIGINT NOT NULL CHECK (logical_attempt_id >= 1),
    engine_attempt_id BIGINT CHECK (engine_attempt_id >= 1),
    event_data TEXT COLLATE "C" NOT NULL,
    engine_run_ref TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL CHECK (length(idempotency_key) = 64),
    emitted_at TEXT COLLATE "C" NOT NULL,
    persisted_at TIMESTAMPTZ NOT NULL,
    adapter_version TEXT COLLATE "C",
    caused_by_signal_id TEXT COLLATE "C",
    parent_event_id TEXT COLLATE "C",
    PRIMARY KEY (engine_run_id, run_seq),
    CONSTRAINT run_events_idempotency_key_unique UNIQUE (engine_run_id, idempotency_key)
);
CREATE INDEX run_head_unprojected ON run_head (engine_run_id) WHERE last_seq > projected_seq;
CREATE INDEX run_head_by_time ON run_head (opened_at);
CREATE INDEX run_head_open ON run_head (engine_run_id) WHERE ended_at IS NULL;
CREATE INDEX run_events_by_step ON run_events (step_id, engine_run_id, run_seq) WHERE step_id IS NOT NULL;
CREATE INDEX run_events_discovery_failed ON run_events (persisted_at) WHERE event_type = 'DiscoveryFailed';

CREATE TRIGGER run_head_no_delete BEFORE DELETE OR TRUNCATE ON run_head EXECUTE FUNCTION refuse_write();

CREATE TRIGGER run_head_invalid_update BEFORE UPDATE ON run_head
FOR EACH ROW WHEN ( NEW.engine_run_id <> OLD.engine_run_id OR NEW.plan_version <> OLD.plan_version
    OR NEW.opened_at <> OLD.opened_at OR NEW.last_seq < OLD.last_seq OR NEW.last_at < OLD.last_at
    OR NEW.projected_seq < OLD.projected_seq OR OLD.retired_at IS NOT NULL AND (NEW.last_seq <> OLD.last_seq
    OR NEW.retired_at IS DISTINCT FROM OLD.retired_at) ) EXECUTE FUNCTION refuse_write();
CREATE TRIGGER run_events_no_update BEFORE UPDATE OR TRUNCATE ON run_events EXECUTE FUNCTION refuse_write();

CREATE FUNCTION refuse_unless_retired() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM run_head WHERE run_head.engine_run_id = OLD.engine_run_id AND run_head.retired_at IS NOT NULL) THEN
        RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation';
    END IF;
    RETURN OLD;
END
$$;

CREATE FUNCTION delete_run_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM run_events WHERE engine_run_id = NEW.engine_run_id;
    RETURN NULL;
END
$$;

CREATE TRIGGER run_events_no_delete BEFORE DELETE ON run_events
FOR EACH ROW EXECUTE FUNCTION refuse_unless_retired();

CREATE TRIGGER run_head_retire AFTER UPDATE ON run_head
FOR EACH ROW WHEN (NEW.retired_at IS NOT NULL AND OLD.retired_at IS NULL) EXECUTE FUNCTION delete_run_events();

-- The table of ADR-026, with exactly its columns.
CREATE TABLE partition_status (
    tenant_id TEXT COLLATE "C" NOT NULL,
    workspace_id TEXT COLLATE "C" NOT NULL,
    asset_key TEXT COLLATE "C" NOT NULL,
    partition_key TEXT COLLATE "C" NOT NULL,
    last_materialization_run_id TEXT COLLATE "C",
    last_materialization_at TIMESTAMPTZ,
    last_materialization_code_version TEXT COLLATE "C",
    last_attempt_run_id TEXT COLLATE "C" NOT NULL,
    last_attempt_at TIMESTAMPTZ NOT NULL,
    last_attempt_outcome TEXT COLLATE "C" NOT NULL
        CHECK (last_attempt_outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    stale_since TIMESTAMPTZ,
    stale_reason_code TEXT COLLATE "C"
        CHECK (stale_reason_code IN ('FRESHNESS_POLICY', 'UPSTREAM_CHANGED', 'CODE_CHANGED')),
    partition_values TEXT COLLATE "C" NOT NULL,
    row_version TEXT COLLATE "C" NOT NULL CHECK (length(row_version) = 26),
    PRIMARY KEY (tenant_id, workspace_id, asset_key, partition_key),
    CONSTRAINT materialization_complete CHECK (
        (last_materialization_run_id IS NULL) = (last_materialization_at IS NULL)
        AND (last_materialization_run_id IS NULL) = (last_materialization_code_version IS NULL)
    ),
    CONSTRAINT staleness_complete CHECK (
        (stale_since IS NULL) = (stale_reason_code IS NULL)
        AND (stale_since IS NULL OR last_materialization_at IS NOT NULL)
    )
) WITH (fillfactor = 50);

-- Attempts that ended without a verdict: loads, runs that ended before it, and fetches that produced no run. A failed
-- fetch has an error_class. The attempt_id is the raw run, or the id of a failed fetch, which has no run.
-- partition_status is folded from these and from attempts.
CREATE TABLE finished_attempts (
    asset TEXT COLLATE "C" NOT NULL CHECK (asset IN ('raw', 'warehouse')),
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    query_name TEXT COLLATE "C" NOT NULL,
    logical_date DATE NOT NULL,
    finished_at TIMESTAMPTZ NOT NULL,
    attempt_id TEXT COLLATE "C" NOT NULL CHECK (length(attempt_id) BETWEEN 1 AND 96),
    outcome TEXT COLLATE "C" NOT NULL CHECK (outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    code_version TEXT COLLATE "C",
    failed_at TIMESTAMPTZ,
    engine_run_id TEXT COLLATE "C" CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    error_class TEXT COLLATE "C" CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message TEXT COLLATE "C" CHECK (length(error_message) BETWEEN 1 AND 2000),
    wait_until TIMESTAMPTZ,
    request_id TEXT COLLATE "C" CHECK (length(request_id) BETWEEN 1 AND 200),
    PRIMARY KEY (asset, source, customer_id, query_name, logical_date, finished_at, attempt_id),
    CONSTRAINT code_version_needs_success CHECK (code_version IS NULL OR outcome = 'SUCCEEDED'),
    CONSTRAINT failed_fetch_complete CHECK (
        (error_class IS NULL) = (failed_at IS NULL) AND (error_class IS NULL) = (engine_run_id IS NULL)
        AND (error_class IS NULL) = (error_message IS NULL)
        AND (error_class IS NOT NULL OR wait_until IS NULL AND request_id IS NULL)
    ),
    CONSTRAINT failed_fetch_is_a_failure CHECK (error_class IS NULL OR asset = 'raw' AND outcome = 'FAILED')
);

CREATE INDEX finished_attempts_failed_fetches ON finished_attempts
(source, customer_id, query_name, logical_date)
WHERE error_class IS NOT NULL;

-- The fetches that produced no run.
CREATE VIEW failed_fetches AS
SELECT source, customer_id, query_name, logical_date, finished_at, attempt_id, failed_at, engine_run_id, error_class,
    error_message, wait_until, request_id
FROM finished_attempts WHERE error_class IS NOT NULL;

-- The code version of each asset, and since when it is in use.
CREATE TABLE code_versions (
    tenant_id TEXT COLLATE "C" NOT NULL,
    workspace_id TEXT COLLATE "C" NOT NULL,
    asset_key TEXT COLLATE "C" NOT NULL,
    code_version TEXT COLLATE "C" NOT NULL,
    seen_since TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (tenant_id, workspace_id, asset_key)
);

CREATE TRIGGER finished_attempts_no_update_delete BEFORE UPDATE OR DELETE OR TRUNCATE ON finished_attempts
EXECUTE FUNCTION refuse_write();

-- Every account that discovery has found. Those that left stay, with the time since when they are gone.
CREATE TABLE accounts (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    status TEXT COLLATE "C" NOT NULL CHECK (length(status) BETWEEN 1 AND 64),
    level INTEGER NOT NULL CHECK (level >= 0),
    name TEXT COLLATE "C" CHECK (length(name) <= 300),
    is_manager INTEGER NOT NULL CHECK (is_manager IN (0, 1)),
    manager_id TEXT COLLATE "C",
    login_customer_id TEXT COLLATE "C",
    time_zone TEXT COLLATE "C" CHECK (length(time_zone) <= 100),
    currency_code TEXT COLLATE "C" CHECK (length(currency_code) <= 16),
    is_test INTEGER NOT NULL CHECK (is_test IN (0, 1)),
    is_hidden INTEGER NOT NULL CHECK (is_hidden IN (0, 1)),
    seen_at TIMESTAMPTZ NOT NULL,
    gone_at TIMESTAMPTZ,
    lookback_days INTEGER CHECK (lookback_days BETWEEN 0 AND 90),
    lookback_read_at TIMESTAMPTZ,
    PRIMARY KEY (source, customer_id)
) WITH (fillfactor = 50);

-- A row before each call, and a second one with its outcome. others_no counts the operations up to this one that
-- fetch no fresh day: of backfills and about accounts. Differences of numbers count the operations of a window.
CREATE TABLE api_operations (
    source TEXT COLLATE "C" NOT NULL,
    operation_no BIGINT NOT NULL CHECK (operation_no >= 1),
    entry TEXT COLLATE "C" NOT NULL CHECK (entry IN ('reserved', 'finished')),
    at TIMESTAMPTZ NOT NULL,
    engine_run_id TEXT COLLATE "C" NOT NULL CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    kind TEXT COLLATE "C" NOT NULL CHECK (length(kind) BETWEEN 1 AND 64),
    lane TEXT COLLATE "C" NOT NULL CHECK (lane IN ('fresh', 'backfill')),
    others_no BIGINT NOT NULL CHECK (others_no BETWEEN 0 AND operation_no),
    customer_id TEXT COLLATE "C",
    query_name TEXT COLLATE "C",
    since DATE,
    until DATE,
    outcome TEXT COLLATE "C" CHECK (length(outcome) BETWEEN 1 AND 64),
    error_message TEXT COLLATE "C" CHECK (length(error_message) BETWEEN 1 AND 2000),
    request_id TEXT COLLATE "C" CHECK (length(request_id) BETWEEN 1 AND 200),
    rows_received BIGINT CHECK (rows_received >= 0),
    milliseconds BIGINT CHECK (milliseconds >= 0),
    consumption BIGINT,
    PRIMARY KEY (source, operation_no, entry),
    CONSTRAINT outcome_when_finished CHECK ((entry = 'finished') = (outcome IS NOT NULL))
);

-- The last hold on the calls about one customer, or on all calls with an empty customer_id. failed_no is the call for
-- which it was placed or made longer, after so many failures in a row. probe_no is the one call that may find out
-- whether it can be lifted. held_at is when it began; with lifted_at it has ended. On Postgres, calls to a source and
-- changes of its holds lock the row with the empty customer_id.
CREATE TABLE api_holds (
    source TEXT COLLATE "C" NOT NULL,
    customer_id TEXT COLLATE "C" NOT NULL,
    held_until TIMESTAMPTZ NOT NULL,
    why TEXT COLLATE "C" NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    request_id TEXT COLLATE "C" CHECK (length(request_id) BETWEEN 1 AND 200),
    held_at TIMESTAMPTZ NOT NULL,
    error_class TEXT COLLATE "C" NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    failed_no BIGINT CHECK (failed_no >= 1),
    probe_no BIGINT CHECK (probe_no >= 1),
    probe_at TIMESTAMPTZ,
    lifted_at TIMESTAMPTZ,
    PRIMARY KEY (source, customer_id),
    CONSTRAINT probe_has_a_time CHECK ((probe_no IS NULL) = (probe_at IS NULL))
) WITH (fillfactor = 50);
CREATE INDEX api_operations_by_time ON api_operations (source, at, operation_no) WHERE entry = 'reserved';
CREATE INDEX api_operations_by_query ON api_operations (source, customer_id, query_name, operation_no)
WHERE entry = 'reserved';
CREATE INDEX api_operations_narrowed ON api_operations (source, at)
WHERE outcome IN ('range_too_wide', 'single_days_only', 'timed_out');

CREATE TRIGGER api_operations_no_update_delete BEFORE UPDATE OR DELETE OR TRUNCATE ON api_operations
EXECUTE FUNCTION refuse_write();
CREATE TRIGGER accounts_no_delete BEFORE DELETE OR TRUNCATE ON accounts EXECUTE FUNCTION refuse_write();
