"""Names that Dagster 1.13 does not export, each with its use here. Those of its storages are in `event_storage`.

No other module imports a private module of Dagster. `test_dagster_private` fails when one of them changes meaning.
"""

# The planned evaluation of a check, which names all partitions of its run.
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned as PlannedCheck

# A check of a range must name the materialization that it judged, otherwise the UI shows no status of the partition.
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as TargetMaterialization,
)

# Metadata key of an output for which Dagster emits no materializations of its own.
from dagster._core.definitions.source_asset import (
    SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION as SUPPRESS_MATERIALIZATION,
)

# The code server, which starts the processes of runs: its module, which other processes need not load, and its class.
CODE_SERVER = ("dagster._grpc.server", "DagsterApiServer")

__all__ = ["CODE_SERVER", "SUPPRESS_MATERIALIZATION", "PlannedCheck", "TargetMaterialization"]
