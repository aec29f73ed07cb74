"""The registry of contracts: which model judges which query and schema version."""

from collections.abc import Mapping

from ads_pipeline.contracts import models
from ads_pipeline.contracts.models import Row
from ads_pipeline.contracts.rules import Rules, read_rules
from ads_pipeline.errors import ContractMissing

CONTRACTS: Mapping[tuple[str, str], type[Row]] = {
    ("campaign_daily", "1"): models.CampaignDailyV1,
    ("campaign_daily", "2"): models.CampaignDailyV2,
    ("ad_group_daily", "1"): models.AdGroupDailyV1,
    ("keyword_daily", "1"): models.KeywordDailyV1,
    ("search_term_daily", "1"): models.SearchTermDailyV1,
}


def contract_for(query_name: str, schema_version: str) -> type[Row]:
    """The pandera model for these rows. Raises ContractMissing, which lists the declared versions."""
    model = CONTRACTS.get((query_name, schema_version))
    if model is None:
        declared = tuple(version for name, version in CONTRACTS if name == query_name)
        raise ContractMissing(query_name, schema_version, declared)
    return model


def rules_for(query_name: str, schema_version: str) -> Rules:
    """The same contract as plain data, which Spark can send to its workers. Raises ContractMissing."""
    return read_rules(contract_for(query_name, schema_version), schema_version=schema_version)
