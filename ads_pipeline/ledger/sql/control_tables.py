"""The tables of leases, claims, the retry queue, parkings and holds.

A partition's state never depends on them: it follows from verdicts and control actions alone.
"""

from ads_pipeline.ledger.sql.state_tables import PARTITION_KEY, define_table

# One for each engine run, extended by its heartbeats. The claims of the run are valid while its lease is.
leases = define_table(
    "leases",
    "engine_run_id text key, opened_at instant, heartbeat_at instant, expires_at instant, ended_at instant",
)

# The run that last claimed a partition. The fence grows whenever another run claims it.
claims = define_table("claims", PARTITION_KEY, "engine_run_id text, fence bigint, claimed_at instant")

# The next run of a partition: the retry planned after its last failure, and the request for a run. The next failure
# replaces the plan; without due_at there is no automatic retry. The request is open until the next verdict, when
# attempt_count exceeds requested_no. Failed fetches up to released_at do not count, and neither do those up to
# recovered_at that an outage can cause.
retry_queue = define_table(
    "retry_queue",
    PARTITION_KEY,
    "attempt_no integer, failures integer, error_class text, failed_at instant, wait_until instant, "
    "due_at instant, why text, planned_at instant, kind text, action_id text, requested_no integer, "
    "requested_at instant, released_at instant, recovered_at instant",
)

# Customers, queries and whole sources that are not fetched until an operator releases them.
parkings = define_table(
    "parkings",
    "source text key, scope text key, name text key, error_class text, why text, parked_at instant",
)

# The last hold on the calls about one customer, or on all calls with an empty customer_id. `failed_no` is the call
# for which it was placed or made longer, after `failures` unanswered calls in a row. `probe_no` is the one call that
# may find out whether it can be lifted. `held_at` is when it began; with `lifted_at` it has ended.
api_holds = define_table(
    "api_holds",
    "source text key, customer_id text key, held_until instant, why text, request_id text, held_at instant, "
    "error_class text, failures integer, failed_no bigint, probe_no bigint, probe_at instant, lifted_at instant",
)
