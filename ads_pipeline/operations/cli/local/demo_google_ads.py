"""The command `ads-pipeline demo --google-ads`: the real client fetches from a server on loopback.

It shows discovery, a range of days for one operation, a parked account, an account that must wait, and a restatement.
"""

import tempfile
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.google_ads.configuration import check_installation
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer, loopback_server
from ads_pipeline.google_ads.loopback.scenarios import (
    MANAGER_ID,
    Behaviour,
    GoogleError,
    ListedAccount,
    RequestFailure,
    Scenario,
)
from ads_pipeline.operations.cli.command_line.options import Filters
from ads_pipeline.operations.cli.command_line.output import OutputConsole
from ads_pipeline.operations.cli.google_ads.accounts_commands import list_accounts
from ads_pipeline.operations.cli.local.demo import DEMO_QUERY, run_assets
from ads_pipeline.operations.cli.local.demo_home import choose_home, open_home, print_next_commands, require_spark
from ads_pipeline.operations.cli.local.dev import prepare_dagster
from ads_pipeline.operations.cli.state.why import print_report
from ads_pipeline.operations.cli.warehouse.restatements import list_restatements
from ads_pipeline.operations.cli.warehouse.rows import query
from ads_pipeline.settings.environment import Settings, read_settings

DAYS: Final = 14
QUERY: Final = "campaign_daily"
SHOP, OUTLET, CANCELED, DENIED, BUSY = (f"{2_000_000_000 + number}" for number in range(1, 6))
_CANCELED_STATUS: Final = 3
_USER_PERMISSION_DENIED, _RESOURCE_EXHAUSTED, _ACCOUNT_SCOPE = 2, 2, 2


def run_google_ads_demo(environ: Mapping[str, str]) -> None:
    """Run the demo. It stores no credentials: the server and its certificate end with the command.

    Raises as `demo.run_demo` does.
    """
    environ = choose_home(environ, ".ads_pipeline_demo_google_ads")
    settings = read_settings(environ)
    require_spark(settings, environ)
    check_installation(settings.google_apis.api_version, "demo --google-ads")
    until = datetime.now(UTC).date() - timedelta(days=2)  # closed in every zone
    since = until - timedelta(days=DAYS - 1)
    console = OutputConsole()
    customers = [MANAGER_ID, SHOP, OUTLET, CANCELED, DENIED, BUSY]
    settings = open_home(settings, environ, queries=[QUERY], first_day=since, customers=customers)
    with (
        tempfile.TemporaryDirectory() as folder,
        loopback_server(Path(folder), settings.google_apis.api_version) as server,
    ):
        environment = {
            **environ,
            "ADS_PIPELINE_GOOGLE_ADS": str(server.configuration),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(server.certificate),
        }
        settings = read_settings(environment)
        run = prepare_dagster(settings, environment)
        console.print(f"Discovering accounts and fetching {DAYS} days of {QUERY} from a server on loopback")
        _fetch(settings, run, server, console, since=since, until=until, revision=1)
        console.print("\nThe accounts that discovery found, from `ads-pipeline accounts list`:\n")
        list_accounts(settings)
        console.print(f"\nAn account that must wait, from `ads-pipeline state why {BUSY}/{QUERY}/{until}`:\n")
        print_report(settings, f"{BUSY}/{QUERY}/{until}")
        console.print("\nVisible rows, from `ads-pipeline warehouse query`:\n")
        query(settings, DEMO_QUERY.strip())
        console.print("\nThe same days after a restatement by Google:\n")
        _fetch(settings, run, server, console, since=since, until=until, revision=2)
        query(settings, DEMO_QUERY.strip())
        last = str(until - timedelta(days=2))
        console.print(
            f"\nEach change, from `ads-pipeline warehouse restatements --customer {SHOP} --since {last}`:\n"
        )
        list_restatements(settings, Filters(customer=[SHOP], since=last))
    commands = [
        "accounts list",
        "state inspect",
        f"state why {BUSY}/{QUERY}/{until}",
        "warehouse restatements --changed",
        "dev",
    ]
    print_next_commands(console, settings, commands)
    console.print("\ndocs/google-ads.md has the first steps with accounts of your own.")


def _fetch(
    settings: Settings,
    environment: Mapping[str, str],
    server: LoopbackServer,
    console: OutputConsole,
    *,
    since: date,
    until: date,
    revision: int,
) -> None:
    server.answer(_make_scenario(revision))
    before = sum(server.operations().values())
    run_assets(settings, environment, [QUERY], since, until)
    console.print(f"operations of the API that the server counted: {sum(server.operations().values()) - before}")


def _make_scenario(revision: int) -> Scenario:
    denied = GoogleError(
        category="authorization_error", number=_USER_PERMISSION_DENIED, message="User doesn't have permission."
    )
    busy = GoogleError(
        category="quota_error",
        number=_RESOURCE_EXHAUSTED,
        message="Too many requests. Retry in 3600 seconds.",
        retry_seconds=3_600,
        rate_scope=_ACCOUNT_SCOPE,
    )
    return Scenario(
        clients={
            MANAGER_ID: (
                ListedAccount(customer_id=MANAGER_ID, name="Agency", level=0, manager=True),
                ListedAccount(customer_id=SHOP, name="Shop"),
                ListedAccount(
                    customer_id=OUTLET, name="Outlet", time_zone="America/Los_Angeles", currency_code="USD"
                ),
                ListedAccount(customer_id=CANCELED, name="Closed shop", status=_CANCELED_STATUS),
                ListedAccount(customer_id=DENIED, name="Somebody else's shop"),
                ListedAccount(customer_id=BUSY, name="Busy shop"),
            )
        },
        customers={
            SHOP: Behaviour(rows=5, revision=revision),
            OUTLET: Behaviour(rows=2, revision=revision),
            DENIED: Behaviour(failure=RequestFailure(code="PERMISSION_DENIED", errors=(denied,))),
            BUSY: Behaviour(failure=RequestFailure(code="RESOURCE_EXHAUSTED", errors=(busy,))),
        },
    )
