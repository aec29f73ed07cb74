-- The ledger on SQLite. The migration executes this text; docs/schema-changes.md says how it changes.
-- Triggers use the row's rowid too: REPLACE deletes a row without running a DELETE trigger.

-- Every registered run. The ordinal is the order of registration, the only order between the runs of a partition.
CREATE TABLE runs (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    run_id TEXT NOT NULL CHECK (length(run_id) BETWEEN 1 AND 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    schema_version TEXT,
    record_count INTEGER CHECK (record_count >= 0),
    payload_sha256 TEXT CHECK (length(payload_sha256) = 64),
    extracted_at TEXT CHECK (extracted_at LIKE '____-__-__T__:__:__.______Z'),
    registered_at TEXT NOT NULL CHECK (registered_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    CONSTRAINT runs_ordinal_unique UNIQUE (source, customer_id, query_name, logical_date, ordinal),
    CONSTRAINT seal_facts_complete CHECK ((schema_version IS NULL) = (record_count IS NULL)),
    CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))
) STRICT;

-- The state of each partition, with exactly the columns of its contract. Its row is the lock of the partition.
CREATE TABLE partition_state (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    current_run_id TEXT,
    schema_version TEXT,
    record_count INTEGER CHECK (record_count >= 0),
    updated_at TEXT NOT NULL CHECK (updated_at LIKE '____-__-__T__:__:__.______Z'),
    error_message TEXT CHECK (length(error_message) BETWEEN 1 AND 2000),
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
    ),
    CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))
) STRICT;

-- Every verdict, numbered within its partition. A rejection has its reason as JSON. payload_bytes and payload_sha256
-- describe the bytes that were judged. After the verdict, current_ordinal is the ordinal of the current run, and
-- message_ordinal the ordinal of the run that the state's error_message is about.
CREATE TABLE attempts (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 1),
    run_id TEXT NOT NULL,
    validation_id TEXT NOT NULL CHECK (length(validation_id) <= 96),
    ordinal INTEGER NOT NULL CHECK (ordinal >= 1),
    outcome TEXT NOT NULL CHECK (outcome IN ('accepted', 'rejected')),
    effect TEXT NOT NULL,
    error_class TEXT CHECK (length(error_class) BETWEEN 1 AND 64),
    reason TEXT CHECK (length(reason) >= 1),
    rows_read INTEGER CHECK (rows_read >= 0),
    rows_failed INTEGER CHECK (rows_failed >= 0),
    payload_bytes INTEGER CHECK (payload_bytes >= 0),
    payload_sha256 TEXT CHECK (length(payload_sha256) = 64),
    judged_at TEXT NOT NULL CHECK (judged_at LIKE '____-__-__T__:__:__.______Z'),
    current_ordinal INTEGER,
    message_ordinal INTEGER,
    cost_micros INTEGER,
    conversions REAL,
    conversions_value REAL,
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
        OR effect IN ('promoted', 'confirmed', 'demoted') AND NOT (ordinal IS NOT current_ordinal)
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
) STRICT;

-- The run that readers see of a partition. It is written after the rows are in the warehouse.
CREATE TABLE warehouse_pointer (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    run_id TEXT NOT NULL,
    schema_version TEXT NOT NULL,
    record_count INTEGER NOT NULL CHECK (record_count >= 0),
    table_version INTEGER NOT NULL CHECK (table_version >= 0),
    availability TEXT NOT NULL CHECK (availability IN ('published', 'unavailable')),
    changed_at TEXT NOT NULL CHECK (changed_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id, query_name, logical_date),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
) STRICT;

-- The first publication of each run. Publishing it again adds no row.
CREATE TABLE load_records (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    run_id TEXT NOT NULL,
    schema_version TEXT NOT NULL,
    record_count INTEGER NOT NULL CHECK (record_count >= 0),
    table_version INTEGER NOT NULL CHECK (table_version >= 0),
    loaded_at TEXT NOT NULL CHECK (loaded_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
) STRICT;

-- Unfinished demotions and withdrawals: the rows are hidden at once. When the warehouse has removed them, the verdict is
-- recorded, or the control action that `request` describes as JSON.
CREATE TABLE demotions (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    run_id TEXT NOT NULL,
    validation_id TEXT NOT NULL CHECK (length(validation_id) <= 96),
    reason TEXT NOT NULL CHECK (length(reason) >= 1),
    rows_read INTEGER CHECK (rows_read >= 0),
    payload_bytes INTEGER CHECK (payload_bytes >= 0),
    payload_sha256 TEXT CHECK (length(payload_sha256) = 64),
    request TEXT CHECK (length(request) >= 1),
    started_at TEXT NOT NULL CHECK (started_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id, query_name, logical_date, run_id),
    FOREIGN KEY (source, customer_id, query_name, logical_date, run_id)
        REFERENCES runs (source, customer_id, query_name, logical_date, run_id)
) STRICT;
CREATE INDEX partition_state_by_date ON partition_state (source, query_name, logical_date, customer_id);
CREATE INDEX partition_state_not_success ON partition_state (source, customer_id, query_name, logical_date, status)
WHERE status <> 'success';
CREATE INDEX partition_state_failed ON partition_state (source, customer_id, query_name, logical_date)
WHERE status = 'failed';
CREATE INDEX attempts_rejected ON attempts (source, customer_id, query_name, logical_date, ordinal, attempt_no)
WHERE outcome = 'rejected';

-- No verdict and no control action updates a row like this, so no connection may.
CREATE TRIGGER partition_state_invalid_update BEFORE UPDATE ON partition_state
WHEN NEW.source <> OLD.source OR NEW.customer_id <> OLD.customer_id
    OR NEW.query_name <> OLD.query_name OR NEW.logical_date <> OLD.logical_date
    OR NEW.updated_at <= OLD.updated_at
    OR NEW.attempt_count < OLD.attempt_count
    OR OLD.current_run_id IS NOT NULL AND NEW.current_run_id IS NULL
    OR NEW.attempt_count > OLD.attempt_count AND NEW.status = 'pending'
    OR NEW.attempt_count = OLD.attempt_count AND (
        NEW.status <> 'pending' OR OLD.status = 'pending'
        OR NEW.current_run_id IS NOT OLD.current_run_id
        OR NEW.schema_version IS NOT OLD.schema_version
        OR NEW.record_count IS NOT OLD.record_count
        OR NEW.error_message IS NOT OLD.error_message
    )
BEGIN
    SELECT RAISE(ABORT, 'partition_state: UPDATE is refused');
END;

CREATE TRIGGER partition_state_no_delete BEFORE DELETE ON partition_state
BEGIN
    SELECT RAISE(ABORT, 'partition_state: DELETE is refused');
END;

-- A judged state follows from its logs: every counted attempt exists, and the last one led to this status and
-- current run. Counting is one scan of an index, which is cheaper than a search for each of these.
CREATE TRIGGER inserted_judged_state AFTER INSERT ON partition_state
WHEN (NEW.attempt_count > 0 AND NEW.status <> 'pending') AND NOT (
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
)
BEGIN
    SELECT RAISE(ABORT, 'partition_state: no attempt or control action led to this state');
END;

CREATE TRIGGER updated_judged_state AFTER UPDATE ON partition_state
WHEN (NEW.attempt_count > 0 AND NEW.status <> 'pending') AND NOT (
    (
        SELECT count(*) FROM attempts AS a
        WHERE a.source = NEW.source AND a.customer_id = NEW.customer_id
          AND a.query_name = NEW.query_name AND a.logical_date = NEW.logical_date
          AND a.attempt_no > OLD.attempt_count
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
    ) = NEW.attempt_count - OLD.attempt_count
)
BEGIN
    SELECT RAISE(ABORT, 'partition_state: no attempt or control action led to this state');
END;

-- Only a control action after the last attempt makes a judged partition pending.
CREATE TRIGGER inserted_pending_state AFTER INSERT ON partition_state
WHEN (NEW.attempt_count > 0 AND NEW.status = 'pending') AND NOT (
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
)
BEGIN
    SELECT RAISE(ABORT, 'partition_state: no attempt or control action led to this state');
END;

CREATE TRIGGER updated_pending_state AFTER UPDATE ON partition_state
WHEN (NEW.attempt_count > 0 AND NEW.status = 'pending') AND NOT (
    EXISTS (
        SELECT 1 FROM control_action_partitions AS p JOIN control_actions AS c ON c.action_id = p.action_id
        WHERE p.source = NEW.source AND p.customer_id = NEW.customer_id
          AND p.query_name = NEW.query_name AND p.logical_date = NEW.logical_date
          AND p.attempt_no = NEW.attempt_count AND c.action IN ('requeue', 'withdraw'))
)
BEGIN
    SELECT RAISE(ABORT, 'partition_state: no attempt or control action led to this state');
END;

CREATE TRIGGER runs_no_update BEFORE UPDATE ON runs
BEGIN
    SELECT RAISE(ABORT, 'runs: UPDATE is refused');
END;

CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs
BEGIN
    SELECT RAISE(ABORT, 'runs: DELETE is refused');
END;

CREATE TRIGGER attempts_no_update BEFORE UPDATE ON attempts
BEGIN
    SELECT RAISE(ABORT, 'attempts: UPDATE is refused');
END;

CREATE TRIGGER attempts_no_delete BEFORE DELETE ON attempts
BEGIN
    SELECT RAISE(ABORT, 'attempts: DELETE is refused');
END;

CREATE TRIGGER load_records_no_update BEFORE UPDATE ON load_records
BEGIN
    SELECT RAISE(ABORT, 'load_records: UPDATE is refused');
END;

CREATE TRIGGER load_records_no_delete BEFORE DELETE ON load_records
BEGIN
    SELECT RAISE(ABORT, 'load_records: DELETE is refused');
END;

-- A loaded run was accepted. A published pointer is at a loaded run of a success; it moves to the current run.
CREATE TRIGGER loaded_run_was_accepted AFTER INSERT ON load_records
WHEN NOT (
    EXISTS (
        SELECT 1 FROM attempts AS a
        WHERE a.source = NEW.source AND a.customer_id = NEW.customer_id
          AND a.query_name = NEW.query_name AND a.logical_date = NEW.logical_date
          AND a.run_id = NEW.run_id AND a.outcome = 'accepted')
    AND EXISTS (
        SELECT 1 FROM runs AS r
        WHERE r.source = NEW.source AND r.customer_id = NEW.customer_id
          AND r.query_name = NEW.query_name AND r.logical_date = NEW.logical_date
          AND r.run_id = NEW.run_id AND r.schema_version = NEW.schema_version AND r.record_count = NEW.record_count)
)
BEGIN
    SELECT RAISE(ABORT, 'load_records: no verdict accepted this run');
END;

CREATE TRIGGER inserted_pointer_is_readable AFTER INSERT ON warehouse_pointer
WHEN (NEW.availability = 'published') AND NOT (
    EXISTS (
        SELECT 1 FROM load_records AS l
        WHERE l.source = NEW.source AND l.customer_id = NEW.customer_id
          AND l.query_name = NEW.query_name AND l.logical_date = NEW.logical_date
          AND l.run_id = NEW.run_id AND l.schema_version = NEW.schema_version AND l.record_count = NEW.record_count)
    AND EXISTS (
        SELECT 1 FROM partition_state AS s
        WHERE s.source = NEW.source AND s.customer_id = NEW.customer_id
          AND s.query_name = NEW.query_name AND s.logical_date = NEW.logical_date
          AND s.status = 'success')
)
BEGIN
    SELECT RAISE(ABORT, 'warehouse_pointer: the run is not loaded or not readable');
END;

CREATE TRIGGER updated_pointer_is_readable AFTER UPDATE ON warehouse_pointer
WHEN (NEW.availability = 'published') AND NOT (
    EXISTS (
        SELECT 1 FROM load_records AS l
        WHERE l.source = NEW.source AND l.customer_id = NEW.customer_id
          AND l.query_name = NEW.query_name AND l.logical_date = NEW.logical_date
          AND l.run_id = NEW.run_id AND l.schema_version = NEW.schema_version AND l.record_count = NEW.record_count)
    AND EXISTS (
        SELECT 1 FROM partition_state AS s
        WHERE s.source = NEW.source AND s.customer_id = NEW.customer_id
          AND s.query_name = NEW.query_name AND s.logical_date = NEW.logical_date
          AND s.status = 'success')
)
BEGIN
    SELECT RAISE(ABORT, 'warehouse_pointer: the run is not loaded or not readable');
END;

CREATE TRIGGER moved_pointer_is_current AFTER UPDATE ON warehouse_pointer
WHEN (NEW.availability = 'published' AND (NEW.run_id <> OLD.run_id OR OLD.availability <> 'published')) AND NOT (
    EXISTS (
        SELECT 1 FROM load_records AS l
        WHERE l.source = NEW.source AND l.customer_id = NEW.customer_id
          AND l.query_name = NEW.query_name AND l.logical_date = NEW.logical_date
          AND l.run_id = NEW.run_id AND l.schema_version = NEW.schema_version AND l.record_count = NEW.record_count)
    AND EXISTS (
        SELECT 1 FROM partition_state AS s
        WHERE s.source = NEW.source AND s.customer_id = NEW.customer_id
          AND s.query_name = NEW.query_name AND s.logical_date = NEW.logical_date
          AND s.status = 'success' AND s.current_run_id = NEW.run_id)
)
BEGIN
    SELECT RAISE(ABORT, 'warehouse_pointer: the run is not loaded or not readable');
END;

CREATE TRIGGER partition_state_no_replace BEFORE INSERT ON partition_state
WHEN EXISTS (SELECT 1 FROM partition_state WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM partition_state
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date)
BEGIN
    SELECT RAISE(ABORT, 'partition_state: INSERT of an existing row is refused');
END;

CREATE TRIGGER runs_no_replace BEFORE INSERT ON runs
WHEN EXISTS (SELECT 1 FROM runs WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM runs
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date AND run_id = NEW.run_id)
    OR EXISTS (SELECT 1 FROM runs
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date AND ordinal = NEW.ordinal)
BEGIN
    SELECT RAISE(ABORT, 'runs: INSERT of an existing row is refused');
END;

CREATE TRIGGER attempts_no_replace BEFORE INSERT ON attempts
WHEN EXISTS (SELECT 1 FROM attempts WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM attempts
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date AND attempt_no = NEW.attempt_no)
    OR EXISTS (SELECT 1 FROM attempts
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date AND run_id = NEW.run_id AND validation_id = NEW.validation_id)
BEGIN
    SELECT RAISE(ABORT, 'attempts: INSERT of an existing row is refused');
END;

CREATE TRIGGER load_records_no_replace BEFORE INSERT ON load_records
WHEN EXISTS (SELECT 1 FROM load_records WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM load_records
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date AND run_id = NEW.run_id)
BEGIN
    SELECT RAISE(ABORT, 'load_records: INSERT of an existing row is refused');
END;

-- What operators and the retry policy did, by whom and why.
CREATE TABLE control_actions (
    action_id TEXT NOT NULL PRIMARY KEY CHECK (length(action_id) BETWEEN 1 AND 96),
    action TEXT NOT NULL,
    operator TEXT NOT NULL CHECK (length(operator) >= 1),
    command TEXT NOT NULL,
    filters TEXT NOT NULL,
    reason TEXT NOT NULL CHECK (length(reason) >= 1),
    partitions_changed INTEGER NOT NULL CHECK (partitions_changed >= 0),
    performed_at TEXT NOT NULL CHECK (performed_at LIKE '____-__-__T__:__:__.______Z')
) STRICT;

-- The partitions that an action changed, with their status and number of attempts before it. The number gives actions
-- and verdicts one order, also when a clock went back.
CREATE TABLE control_action_partitions (
    action_id TEXT NOT NULL REFERENCES control_actions (action_id),
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    status_before TEXT CHECK (status_before IN ('pending', 'success', 'failed')),
    attempt_no INTEGER NOT NULL CHECK (attempt_no >= 0),
    PRIMARY KEY (action_id, source, customer_id, query_name, logical_date)
) STRICT;

-- One for each engine run, extended by its heartbeats. The claims of the run are valid while its lease is.
CREATE TABLE leases (
    engine_run_id TEXT NOT NULL PRIMARY KEY CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    opened_at TEXT NOT NULL CHECK (opened_at LIKE '____-__-__T__:__:__.______Z'),
    heartbeat_at TEXT NOT NULL CHECK (heartbeat_at LIKE '____-__-__T__:__:__.______Z'),
    expires_at TEXT NOT NULL CHECK (expires_at LIKE '____-__-__T__:__:__.______Z'),
    ended_at TEXT CHECK (ended_at LIKE '____-__-__T__:__:__.______Z')
) STRICT;

-- The run that last claimed a partition. The fence grows whenever another run claims it.
CREATE TABLE claims (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    engine_run_id TEXT NOT NULL REFERENCES leases (engine_run_id),
    fence INTEGER NOT NULL CHECK (fence >= 1),
    claimed_at TEXT NOT NULL CHECK (claimed_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id, query_name, logical_date),
    CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))
) STRICT;

-- The next run of a partition: the retry planned after its last failure, and the request for a run. The next failure
-- replaces the plan; without due_at there is no automatic retry. The request is open until the next verdict, when
-- attempt_count exceeds requested_no. Failed fetches up to released_at do not count, and neither do those up to
-- recovered_at that an outage can cause. Whether a partition is terminal is computed, not stored.
CREATE TABLE retry_queue (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    attempt_no INTEGER CHECK (attempt_no >= 0),
    failures INTEGER CHECK (failures >= 0),
    error_class TEXT CHECK (length(error_class) BETWEEN 1 AND 64),
    failed_at TEXT CHECK (failed_at LIKE '____-__-__T__:__:__.______Z'),
    wait_until TEXT CHECK (wait_until LIKE '____-__-__T__:__:__.______Z'),
    due_at TEXT CHECK (due_at LIKE '____-__-__T__:__:__.______Z'),
    why TEXT CHECK (length(why) BETWEEN 1 AND 500),
    planned_at TEXT CHECK (planned_at LIKE '____-__-__T__:__:__.______Z'),
    kind TEXT CHECK (kind IN ('retry', 'backfill', 'reprocess')),
    action_id TEXT REFERENCES control_actions (action_id),
    requested_no INTEGER CHECK (requested_no >= 0),
    requested_at TEXT CHECK (requested_at LIKE '____-__-__T__:__:__.______Z'),
    released_at TEXT CHECK (released_at LIKE '____-__-__T__:__:__.______Z'),
    recovered_at TEXT CHECK (recovered_at LIKE '____-__-__T__:__:__.______Z'),
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
    CONSTRAINT due_after_failure CHECK (due_at >= failed_at),
    CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))
) STRICT;

-- Customers, queries and whole sources that are not fetched until an operator releases them.
CREATE TABLE parkings (
    source TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('customer', 'query', 'source')),
    name TEXT NOT NULL,
    error_class TEXT NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    why TEXT NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    parked_at TEXT NOT NULL CHECK (parked_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, scope, name)
) STRICT;
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

CREATE TRIGGER control_actions_no_update BEFORE UPDATE ON control_actions
BEGIN
    SELECT RAISE(ABORT, 'control_actions: UPDATE is refused');
END;

CREATE TRIGGER control_actions_no_delete BEFORE DELETE ON control_actions
BEGIN
    SELECT RAISE(ABORT, 'control_actions: DELETE is refused');
END;

CREATE TRIGGER control_action_partitions_no_update BEFORE UPDATE ON control_action_partitions
BEGIN
    SELECT RAISE(ABORT, 'control_action_partitions: UPDATE is refused');
END;

CREATE TRIGGER control_action_partitions_no_delete BEFORE DELETE ON control_action_partitions
BEGIN
    SELECT RAISE(ABORT, 'control_action_partitions: DELETE is refused');
END;

CREATE TRIGGER leases_no_delete BEFORE DELETE ON leases
BEGIN
    SELECT RAISE(ABORT, 'leases: DELETE is refused');
END;

CREATE TRIGGER leases_invalid_update BEFORE UPDATE ON leases
WHEN NEW.engine_run_id <> OLD.engine_run_id OR NEW.opened_at <> OLD.opened_at OR NEW.expires_at < OLD.expires_at
    OR OLD.ended_at IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'leases: UPDATE is refused');
END;

CREATE TRIGGER claims_no_delete BEFORE DELETE ON claims
BEGIN
    SELECT RAISE(ABORT, 'claims: DELETE is refused');
END;

CREATE TRIGGER claims_invalid_update BEFORE UPDATE ON claims
WHEN NEW.fence < OLD.fence OR NEW.fence = OLD.fence AND NEW.engine_run_id <> OLD.engine_run_id
BEGIN
    SELECT RAISE(ABORT, 'claims: UPDATE is refused');
END;

CREATE TRIGGER control_actions_no_replace BEFORE INSERT ON control_actions
WHEN EXISTS (SELECT 1 FROM control_actions WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM control_actions WHERE action_id = NEW.action_id)
BEGIN
    SELECT RAISE(ABORT, 'control_actions: INSERT of an existing row is refused');
END;

CREATE TRIGGER control_action_partitions_no_replace BEFORE INSERT ON control_action_partitions
WHEN EXISTS (SELECT 1 FROM control_action_partitions WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM control_action_partitions
      WHERE action_id = NEW.action_id AND source = NEW.source AND customer_id = NEW.customer_id
      AND query_name = NEW.query_name AND logical_date = NEW.logical_date)
BEGIN
    SELECT RAISE(ABORT, 'control_action_partitions: INSERT of an existing row is refused');
END;

CREATE TRIGGER leases_no_replace BEFORE INSERT ON leases
WHEN EXISTS (SELECT 1 FROM leases WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM leases WHERE engine_run_id = NEW.engine_run_id)
BEGIN
    SELECT RAISE(ABORT, 'leases: INSERT of an existing row is refused');
END;

CREATE TRIGGER claims_no_replace BEFORE INSERT ON claims
WHEN EXISTS (SELECT 1 FROM claims WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM claims
      WHERE source = NEW.source AND customer_id = NEW.customer_id AND query_name = NEW.query_name
      AND logical_date = NEW.logical_date)
BEGIN
    SELECT RAISE(ABORT, 'claims: INSERT of an existing row is refused');
END;

-- The newest event of each run, and its snapshot, folded from the events up to projected_seq. The row is locked to
-- append events in order. Until the first fold there is no status.
CREATE TABLE run_head (
    engine_run_id TEXT NOT NULL PRIMARY KEY CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    plan_version TEXT NOT NULL CHECK (length(plan_version) BETWEEN 1 AND 96),
    last_seq INTEGER NOT NULL CHECK (last_seq >= 0),
    last_at TEXT NOT NULL CHECK (last_at LIKE '____-__-__T__:__:__.______Z'),
    opened_at TEXT NOT NULL CHECK (opened_at LIKE '____-__-__T__:__:__.______Z'),
    projected_seq INTEGER NOT NULL DEFAULT 0,
    payload_conflicts INTEGER NOT NULL DEFAULT 0 CHECK (payload_conflicts >= 0),
    retired_at TEXT CHECK (retired_at LIKE '____-__-__T__:__:__.______Z'),
    status TEXT CHECK (status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')),
    steps TEXT NOT NULL DEFAULT '{}',
    started_at TEXT CHECK (started_at LIKE '____-__-__T__:__:__.______Z'),
    ended_at TEXT CHECK (ended_at LIKE '____-__-__T__:__:__.______Z'),
    inconsistencies INTEGER NOT NULL DEFAULT 0 CHECK (inconsistencies >= 0),
    missing_events INTEGER NOT NULL DEFAULT 0 CHECK (missing_events >= 0),
    stale_since TEXT CHECK (stale_since LIKE '____-__-__T__:__:__.______Z'),
    CONSTRAINT projected_seq_in_range CHECK (projected_seq BETWEEN 0 AND last_seq)
) STRICT;

-- The events of runs. Nothing changes or deletes one, unless its whole run is retired.
CREATE TABLE run_events (
    engine_run_id TEXT NOT NULL,
    run_seq INTEGER NOT NULL CHECK (run_seq >= 1),
    event_id TEXT NOT NULL CHECK (length(event_id) = 36),
    event_type TEXT NOT NULL CHECK (length(event_type) BETWEEN 1 AND 64),
    step_id TEXT CHECK (length(step_id) BETWEEN 1 AND 256),
    logical_attempt_id INTEGER NOT NULL CHECK (logical_attempt_id >= 1),
    engine_attempt_id INTEGER CHECK (engine_attempt_id >= 1),
    event_data TEXT NOT NULL,
    engine_run_ref TEXT NOT NULL,
    idempotency_key TEXT NOT NULL CHECK (length(idempotency_key) = 64),
    emitted_at TEXT NOT NULL,
    persisted_at TEXT NOT NULL CHECK (persisted_at LIKE '____-__-__T__:__:__.______Z'),
    adapter_version TEXT,
    caused_by_signal_id TEXT,
    parent_event_id TEXT,
    PRIMARY KEY (engine_run_id, run_seq),
    CONSTRAINT run_events_idempotency_key_unique UNIQUE (engine_run_id, idempotency_key)
) STRICT;
CREATE INDEX run_head_unprojected ON run_head (engine_run_id) WHERE last_seq > projected_seq;
CREATE INDEX run_head_by_time ON run_head (opened_at);
CREATE INDEX run_head_open ON run_head (engine_run_id) WHERE ended_at IS NULL;
CREATE INDEX run_events_by_step ON run_events (step_id, engine_run_id, run_seq) WHERE step_id IS NOT NULL;
CREATE INDEX run_events_discovery_failed ON run_events (persisted_at) WHERE event_type = 'DiscoveryFailed';

CREATE TRIGGER run_head_no_delete BEFORE DELETE ON run_head
BEGIN
    SELECT RAISE(ABORT, 'run_head: DELETE is refused');
END;

CREATE TRIGGER run_head_invalid_update BEFORE UPDATE ON run_head
WHEN NEW.engine_run_id <> OLD.engine_run_id OR NEW.plan_version <> OLD.plan_version OR NEW.opened_at <> OLD.opened_at
    OR NEW.last_seq < OLD.last_seq OR NEW.last_at < OLD.last_at OR NEW.projected_seq < OLD.projected_seq
    OR OLD.retired_at IS NOT NULL AND (NEW.last_seq <> OLD.last_seq OR NEW.retired_at IS NOT OLD.retired_at)
BEGIN
    SELECT RAISE(ABORT, 'run_head: UPDATE is refused');
END;

CREATE TRIGGER run_events_no_update BEFORE UPDATE ON run_events
BEGIN
    SELECT RAISE(ABORT, 'run_events: UPDATE is refused');
END;

CREATE TRIGGER run_events_no_delete BEFORE DELETE ON run_events
WHEN NOT EXISTS (SELECT 1 FROM run_head WHERE run_head.engine_run_id = OLD.engine_run_id AND run_head.retired_at IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'run_events: DELETE is refused');
END;

CREATE TRIGGER inserted_head_is_new AFTER INSERT ON run_head
WHEN (TRUE) AND NOT (NOT EXISTS (SELECT 1 FROM run_events AS e WHERE e.engine_run_id = NEW.engine_run_id))
BEGIN
    SELECT RAISE(ABORT, 'run_head: the run has a head');
END;

CREATE TRIGGER inserted_head_replaces_none BEFORE INSERT ON run_head
WHEN EXISTS ( SELECT 1 FROM run_head AS h WHERE h.rowid = NEW.rowid OR h.engine_run_id = NEW.engine_run_id
    AND h.retired_at IS NOT NULL)
BEGIN
    SELECT RAISE(ABORT, 'run_head: INSERT of an existing row is refused');
END;

CREATE TRIGGER run_head_retire AFTER UPDATE ON run_head
WHEN NEW.retired_at IS NOT NULL AND OLD.retired_at IS NULL
BEGIN
    DELETE FROM run_events WHERE engine_run_id = NEW.engine_run_id;
END;

CREATE TRIGGER run_events_no_replace BEFORE INSERT ON run_events
WHEN EXISTS (SELECT 1 FROM run_events WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM run_events WHERE engine_run_id = NEW.engine_run_id AND run_seq = NEW.run_seq)
    OR EXISTS (SELECT 1 FROM run_events WHERE engine_run_id = NEW.engine_run_id AND idempotency_key = NEW.idempotency_key)
BEGIN
    SELECT RAISE(ABORT, 'run_events: INSERT of an existing row is refused');
END;

-- The table of ADR-026, with exactly its columns.
CREATE TABLE partition_status (
    tenant_id TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    asset_key TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    last_materialization_run_id TEXT,
    last_materialization_at TEXT CHECK (last_materialization_at LIKE '____-__-__T__:__:__.______Z'),
    last_materialization_code_version TEXT,
    last_attempt_run_id TEXT NOT NULL,
    last_attempt_at TEXT NOT NULL CHECK (last_attempt_at LIKE '____-__-__T__:__:__.______Z'),
    last_attempt_outcome TEXT NOT NULL CHECK (last_attempt_outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    stale_since TEXT CHECK (stale_since LIKE '____-__-__T__:__:__.______Z'),
    stale_reason_code TEXT
        CHECK (stale_reason_code IN ('FRESHNESS_POLICY', 'UPSTREAM_CHANGED', 'CODE_CHANGED')),
    partition_values TEXT NOT NULL,
    row_version TEXT NOT NULL CHECK (length(row_version) = 26),
    PRIMARY KEY (tenant_id, workspace_id, asset_key, partition_key),
    CONSTRAINT materialization_complete CHECK (
        (last_materialization_run_id IS NULL) = (last_materialization_at IS NULL)
        AND (last_materialization_run_id IS NULL) = (last_materialization_code_version IS NULL)
    ),
    CONSTRAINT staleness_complete CHECK (
        (stale_since IS NULL) = (stale_reason_code IS NULL)
        AND (stale_since IS NULL OR last_materialization_at IS NOT NULL)
    )
) STRICT;

-- Attempts that ended without a verdict: loads, runs that ended before it, and fetches that produced no run. A failed
-- fetch has an error_class. The attempt_id is the raw run, or the id of a failed fetch, which has no run.
-- partition_status is folded from these and from attempts.
CREATE TABLE finished_attempts (
    asset TEXT NOT NULL CHECK (asset IN ('raw', 'warehouse')),
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    query_name TEXT NOT NULL,
    logical_date TEXT NOT NULL,
    finished_at TEXT NOT NULL CHECK (finished_at LIKE '____-__-__T__:__:__.______Z'),
    attempt_id TEXT NOT NULL CHECK (length(attempt_id) BETWEEN 1 AND 96),
    outcome TEXT NOT NULL CHECK (outcome IN ('SUCCEEDED', 'FAILED', 'CANCELLED')),
    code_version TEXT,
    failed_at TEXT CHECK (failed_at LIKE '____-__-__T__:__:__.______Z'),
    engine_run_id TEXT CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    error_class TEXT CHECK (length(error_class) BETWEEN 1 AND 64),
    error_message TEXT CHECK (length(error_message) BETWEEN 1 AND 2000),
    wait_until TEXT CHECK (wait_until LIKE '____-__-__T__:__:__.______Z'),
    request_id TEXT CHECK (length(request_id) BETWEEN 1 AND 200),
    PRIMARY KEY (asset, source, customer_id, query_name, logical_date, finished_at, attempt_id),
    CONSTRAINT code_version_needs_success CHECK (code_version IS NULL OR outcome = 'SUCCEEDED'),
    CONSTRAINT failed_fetch_complete CHECK (
        (error_class IS NULL) = (failed_at IS NULL) AND (error_class IS NULL) = (engine_run_id IS NULL)
        AND (error_class IS NULL) = (error_message IS NULL)
        AND (error_class IS NOT NULL OR wait_until IS NULL AND request_id IS NULL)
    ),
    CONSTRAINT failed_fetch_is_a_failure CHECK (error_class IS NULL OR asset = 'raw' AND outcome = 'FAILED'),
    CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))
) STRICT;

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
    tenant_id TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    asset_key TEXT NOT NULL,
    code_version TEXT NOT NULL,
    seen_since TEXT NOT NULL CHECK (seen_since LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (tenant_id, workspace_id, asset_key)
) STRICT;

CREATE TRIGGER finished_attempts_no_update BEFORE UPDATE ON finished_attempts
BEGIN
    SELECT RAISE(ABORT, 'finished_attempts: UPDATE is refused');
END;

CREATE TRIGGER finished_attempts_no_delete BEFORE DELETE ON finished_attempts
BEGIN
    SELECT RAISE(ABORT, 'finished_attempts: DELETE is refused');
END;

CREATE TRIGGER finished_attempts_no_replace BEFORE INSERT ON finished_attempts
WHEN EXISTS (SELECT 1 FROM finished_attempts WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM finished_attempts
      WHERE asset = NEW.asset AND source = NEW.source AND customer_id = NEW.customer_id
      AND query_name = NEW.query_name AND logical_date = NEW.logical_date AND finished_at = NEW.finished_at AND attempt_id = NEW.attempt_id)
BEGIN
    SELECT RAISE(ABORT, 'finished_attempts: INSERT of an existing row is refused');
END;

-- Every account that discovery has found. Those that left stay, with the time since when they are gone.
CREATE TABLE accounts (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (length(status) BETWEEN 1 AND 64),
    level INTEGER NOT NULL CHECK (level >= 0),
    name TEXT CHECK (length(name) <= 300),
    is_manager INTEGER NOT NULL CHECK (is_manager IN (0, 1)),
    manager_id TEXT,
    login_customer_id TEXT,
    time_zone TEXT CHECK (length(time_zone) <= 100),
    currency_code TEXT CHECK (length(currency_code) <= 16),
    is_test INTEGER NOT NULL CHECK (is_test IN (0, 1)),
    is_hidden INTEGER NOT NULL CHECK (is_hidden IN (0, 1)),
    seen_at TEXT NOT NULL CHECK (seen_at LIKE '____-__-__T__:__:__.______Z'),
    gone_at TEXT CHECK (gone_at LIKE '____-__-__T__:__:__.______Z'),
    lookback_days INTEGER CHECK (lookback_days BETWEEN 0 AND 90),
    lookback_read_at TEXT CHECK (lookback_read_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id)
) STRICT;

-- A row before each call, and a second one with its outcome. others_no counts the operations up to this one that
-- fetch no fresh day: of backfills and about accounts. Differences of numbers count the operations of a window.
CREATE TABLE api_operations (
    source TEXT NOT NULL,
    operation_no INTEGER NOT NULL CHECK (operation_no >= 1),
    entry TEXT NOT NULL CHECK (entry IN ('reserved', 'finished')),
    at TEXT NOT NULL CHECK (at LIKE '____-__-__T__:__:__.______Z'),
    engine_run_id TEXT NOT NULL CHECK (length(engine_run_id) BETWEEN 1 AND 96),
    kind TEXT NOT NULL CHECK (length(kind) BETWEEN 1 AND 64),
    lane TEXT NOT NULL CHECK (lane IN ('fresh', 'backfill')),
    others_no INTEGER NOT NULL CHECK (others_no BETWEEN 0 AND operation_no),
    customer_id TEXT,
    query_name TEXT,
    since TEXT,
    until TEXT,
    outcome TEXT CHECK (length(outcome) BETWEEN 1 AND 64),
    error_message TEXT CHECK (length(error_message) BETWEEN 1 AND 2000),
    request_id TEXT CHECK (length(request_id) BETWEEN 1 AND 200),
    rows_received INTEGER CHECK (rows_received >= 0),
    milliseconds INTEGER CHECK (milliseconds >= 0),
    consumption INTEGER,
    PRIMARY KEY (source, operation_no, entry),
    CONSTRAINT outcome_when_finished CHECK ((entry = 'finished') = (outcome IS NOT NULL))
) STRICT;

-- The last hold on the calls about one customer, or on all calls with an empty customer_id. failed_no is the call for
-- which it was placed or made longer, after so many failures in a row. probe_no is the one call that may find out
-- whether it can be lifted. held_at is when it began; with lifted_at it has ended.
CREATE TABLE api_holds (
    source TEXT NOT NULL,
    customer_id TEXT NOT NULL,
    held_until TEXT NOT NULL CHECK (held_until LIKE '____-__-__T__:__:__.______Z'),
    why TEXT NOT NULL CHECK (length(why) BETWEEN 1 AND 2000),
    request_id TEXT CHECK (length(request_id) BETWEEN 1 AND 200),
    held_at TEXT NOT NULL CHECK (held_at LIKE '____-__-__T__:__:__.______Z'),
    error_class TEXT NOT NULL CHECK (length(error_class) BETWEEN 1 AND 64),
    failures INTEGER NOT NULL CHECK (failures >= 0),
    failed_no INTEGER CHECK (failed_no >= 1),
    probe_no INTEGER CHECK (probe_no >= 1),
    probe_at TEXT CHECK (probe_at LIKE '____-__-__T__:__:__.______Z'),
    lifted_at TEXT CHECK (lifted_at LIKE '____-__-__T__:__:__.______Z'),
    PRIMARY KEY (source, customer_id),
    CONSTRAINT probe_has_a_time CHECK ((probe_no IS NULL) = (probe_at IS NULL))
) STRICT;
CREATE INDEX api_operations_by_time ON api_operations (source, at, operation_no) WHERE entry = 'reserved';
CREATE INDEX api_operations_by_query ON api_operations (source, customer_id, query_name, operation_no)
WHERE entry = 'reserved';
CREATE INDEX api_operations_narrowed ON api_operations (source, at)
WHERE outcome IN ('range_too_wide', 'single_days_only', 'timed_out');

CREATE TRIGGER api_operations_no_update BEFORE UPDATE ON api_operations
BEGIN
    SELECT RAISE(ABORT, 'api_operations: UPDATE is refused');
END;

CREATE TRIGGER api_operations_no_delete BEFORE DELETE ON api_operations
BEGIN
    SELECT RAISE(ABORT, 'api_operations: DELETE is refused');
END;

CREATE TRIGGER accounts_no_delete BEFORE DELETE ON accounts
BEGIN
    SELECT RAISE(ABORT, 'accounts: DELETE is refused');
END;

CREATE TRIGGER api_operations_no_replace BEFORE INSERT ON api_operations
WHEN EXISTS (SELECT 1 FROM api_operations WHERE rowid = NEW.rowid)
    OR EXISTS (SELECT 1 FROM api_operations
      WHERE source = NEW.source AND operation_no = NEW.operation_no AND entry = NEW.entry)
BEGIN
    SELECT RAISE(ABORT, 'api_operations: INSERT of an existing row is refused');
END;
