"""All definitions of the project: two deployments, and assets of its own that read what they wrote."""

from pathlib import Path

import dagster as dg

from ads_pipeline.api import build_definitions
from agency.spend import build_spend

PROJECT = Path(__file__).parents[2]
SPARK = "local[2]"


@dg.asset(group_name="agency", deps=[dg.AssetKey(["acme", "google_ads"])])
def report() -> dg.MaterializeResult[None]:
    """An asset of the agency. The deployment has one of the same name, below its prefix."""
    return dg.MaterializeResult(metadata={"deployments": ["acme", "beta"]})


@dg.definitions
def defs() -> dg.Definitions:
    """Dagster calls it when it loads the project; the import of this module reads no setting."""
    acme = build_definitions(home=PROJECT / ".acme", key_prefix="acme", spark=SPARK, owners=["team:growth"])
    components = dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
    spend = build_spend(PROJECT / ".acme", key_prefix="acme")
    automation = dg.AutomationConditionSensorDefinition(
        "automation", target="*", default_status=dg.DefaultSensorStatus.RUNNING
    )
    own = dg.Definitions(assets=[report, spend], sensors=[automation], executor=dg.multiprocess_executor)
    return dg.Definitions.merge(acme, components, own)
