"""The pandera models: the rules for one row, and for all rows of a partition together.

Never edit a published model. When a query's fields change, add a new schema_version with its own model; partitions
that were judged by the old model keep it. `validator` evaluates these models for thousands of partitions at once.

A column is a GAQL field without `segments.` and `metrics.`, with dots replaced by underscores. Numbers marked
`coerce` may also arrive as text, because Google's JSON writes 64-bit integers as text. Enumerations are checked by
their spelling only, so that a value that Google adds later does not reject a day.

After a change, `python -m ads_pipeline.validation.rule_reading` writes `shipped_rules.json` again.
"""

from collections.abc import Mapping
from typing import Final

import pyspark.sql.functions as sf
import pyspark.sql.types as st
from pandera.pyspark import DataFrameModel, Field, dataframe_check
from pyspark.sql import DataFrame

from ads_pipeline.validation.contract_rules import (
    ENUM,
    MAX_COUNT,
    MAX_MICROS,
    MAX_VALUE,
    PARTITION_CUSTOMER,
    PARTITION_DAY,
)


class Row(DataFrameModel):  # type: ignore[type-arg]
    """The columns and checks of every query: each row belongs to the partition that delivered it."""

    date: st.DateType = Field(nullable=False)
    customer_id: st.StringType = Field(nullable=False)

    @dataframe_check
    @classmethod
    def date_matches_partition(cls, frame: DataFrame) -> bool:
        """The row's date is the partition's logical date."""
        return frame.filter(sf.col("date") != sf.col(PARTITION_DAY)).limit(1).count() == 0

    @dataframe_check
    @classmethod
    def customer_matches_partition(cls, frame: DataFrame) -> bool:
        """The row's customer is the partition's customer."""
        return frame.filter(sf.col("customer_id") != sf.col(PARTITION_CUSTOMER)).limit(1).count() == 0


class Traffic(Row):
    """The metrics of every query. Google may restate the value of conversions below zero, but not their number.

    Bounds keep what is summed within what sums can hold, far above what an account spends on a day.
    """

    impressions: st.LongType = Field(nullable=False, ge=0, le=MAX_COUNT, coerce=True)
    clicks: st.LongType = Field(nullable=False, ge=0, le=MAX_COUNT, coerce=True)
    cost_micros: st.LongType = Field(nullable=False, ge=0, le=MAX_MICROS, coerce=True)
    conversions: st.DoubleType = Field(nullable=False, ge=0, le=MAX_COUNT)


class CampaignDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    campaign_name: st.StringType = Field(nullable=False)
    campaign_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    campaign_advertising_channel_type: st.StringType = Field(nullable=False, str_matches=ENUM)
    conversions_value: st.DoubleType = Field(nullable=False, ge=-MAX_VALUE, le=MAX_VALUE)

    class Config:
        unique = ["campaign_id"]


class CampaignDailyV2(CampaignDailyV1):
    """Adds all_conversions and search_impression_share. Google omits the share when it has no estimate."""

    all_conversions: st.DoubleType = Field(nullable=False, ge=0, le=MAX_COUNT)
    search_impression_share: st.DoubleType = Field(nullable=True, ge=0, le=1)

    class Config:
        unique = ["campaign_id"]


class AdGroupDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_name: st.StringType = Field(nullable=False)
    ad_group_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    ad_group_type: st.StringType = Field(nullable=False, str_matches=ENUM)
    conversions_value: st.DoubleType = Field(nullable=False, ge=-MAX_VALUE, le=MAX_VALUE)

    class Config:
        unique = ["ad_group_id"]


class KeywordDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_criterion_criterion_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_criterion_keyword_text: st.StringType = Field(nullable=False)
    ad_group_criterion_keyword_match_type: st.StringType = Field(nullable=False, str_matches=ENUM)
    ad_group_criterion_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    conversions_value: st.DoubleType = Field(nullable=False, ge=-MAX_VALUE, le=MAX_VALUE)

    class Config:
        unique = ["ad_group_id", "ad_group_criterion_criterion_id"]


class SearchTermDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    search_term_view_search_term: st.StringType = Field(nullable=False)
    search_term_view_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    search_term_match_type: st.StringType = Field(nullable=False, str_matches=ENUM)

    class Config:
        unique = ["ad_group_id", "search_term_view_search_term", "search_term_match_type"]


CONTRACTS: Final[Mapping[tuple[str, str], type[Row]]] = {
    ("campaign_daily", "1"): CampaignDailyV1,
    ("campaign_daily", "2"): CampaignDailyV2,
    ("ad_group_daily", "1"): AdGroupDailyV1,
    ("keyword_daily", "1"): KeywordDailyV1,
    ("search_term_daily", "1"): SearchTermDailyV1,
}
