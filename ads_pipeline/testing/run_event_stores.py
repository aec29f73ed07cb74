"""The conformance suite for stores of run events: plain functions that check any `RunEventStore`.

An adapter's own tests call each check with a store:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_store_conforms(check: Check) -> None:
        check(MyStore(...))

`check_store` runs all checks without pytest. The store may already have events: each example uses new run ids. An
adapter tests concurrent writers and crashes itself. Needs `ads-pipeline[testing]`. The environment variable SOAK
multiplies the number of generated examples.
"""

from collections.abc import Callable

from ads_pipeline.domain.run_events import CONTRACT_VERSION
from ads_pipeline.domain.run_snapshots import RunEventStore
from ads_pipeline.testing import append_checks, fetch_checks
from ads_pipeline.testing.check_registry import CHECKS, INVARIANTS, Check, holds

__all__ = ["CHECKS", "INVARIANTS", "Check", "append_checks", "check_store", "fetch_checks"]


def check_store(make_store: Callable[[], RunEventStore]) -> None:
    """Run all checks, each with a store of the factory. Raises AssertionError for the first rule that is broken."""
    for check in CHECKS:
        check(make_store())


@holds()
def check_contract_version(store: RunEventStore) -> None:
    """The store implements the major version of the contract that this suite tests."""
    assert store.contract_version.split(".")[0] == CONTRACT_VERSION.split(".")[0]
