"""The pandera models: what a row, and all rows of a partition together, must satisfy.

A published model is never edited. A query whose fields change gets a new schema_version and a model of its own, and
the partitions that were judged by the old one keep it. How rows are judged is `validator`'s; it gives the verdict
these models give, for thousands of partitions at once.

Columns are the GAQL fields with `segments.` and `metrics.` left off and dots as underscores. Numbers marked `coerce`
may also arrive as text, as Google's JSON spells 64-bit integers. Enumerations are checked by their spelling alone: a
value that Google adds tomorrow is no reason to refuse a day.
"""

import pyspark.sql.functions as sf
import pyspark.sql.types as st
from pandera.pyspark import DataFrameModel, Field, dataframe_check
from pyspark.sql import DataFrame

ENUM = r"^[A-Z][A-Z0-9_]*(?![\s\S])"  # and nothing after it; $ would allow a line break

# The partition's own day and customer stand beside each row under these names while it is judged.
PARTITION_DAY = "partition_logical_date"
PARTITION_CUSTOMER = "partition_customer_id"


class Row(DataFrameModel):  # type: ignore[type-arg]
    """What every query's rows share: they belong to the partition they came in."""

    date: st.DateType = Field(nullable=False)
    customer_id: st.StringType = Field(nullable=False)

    @dataframe_check
    @classmethod
    def date_is_the_partitions(cls, frame: DataFrame) -> bool:
        """The row's own day is the logical date."""
        return frame.filter(sf.col("date") != sf.col(PARTITION_DAY)).limit(1).count() == 0

    @dataframe_check
    @classmethod
    def customer_is_the_partitions(cls, frame: DataFrame) -> bool:
        """The row's customer is the partition's."""
        return frame.filter(sf.col("customer_id") != sf.col(PARTITION_CUSTOMER)).limit(1).count() == 0


class Traffic(Row):
    """What is counted everywhere. The value of conversions may be restated below zero; their number may not."""

    impressions: st.LongType = Field(nullable=False, ge=0, coerce=True)
    clicks: st.LongType = Field(nullable=False, ge=0, coerce=True)
    cost_micros: st.LongType = Field(nullable=False, ge=0, coerce=True)
    conversions: st.DoubleType = Field(nullable=False, ge=0)


class CampaignDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    campaign_name: st.StringType = Field(nullable=False)
    campaign_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    campaign_advertising_channel_type: st.StringType = Field(nullable=False, str_matches=ENUM)
    conversions_value: st.DoubleType = Field(nullable=False)

    class Config:
        unique = ["campaign_id"]


class CampaignDailyV2(CampaignDailyV1):
    """Adds the share of the impressions that could have been had; Google leaves it out where it has no estimate."""

    all_conversions: st.DoubleType = Field(nullable=False, ge=0)
    search_impression_share: st.DoubleType = Field(nullable=True, ge=0, le=1)

    class Config:
        unique = ["campaign_id"]


class AdGroupDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_name: st.StringType = Field(nullable=False)
    ad_group_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    ad_group_type: st.StringType = Field(nullable=False, str_matches=ENUM)
    conversions_value: st.DoubleType = Field(nullable=False)

    class Config:
        unique = ["ad_group_id"]


class KeywordDailyV1(Traffic):
    campaign_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_criterion_criterion_id: st.LongType = Field(nullable=False, ge=1, coerce=True)
    ad_group_criterion_keyword_text: st.StringType = Field(nullable=False)
    ad_group_criterion_keyword_match_type: st.StringType = Field(nullable=False, str_matches=ENUM)
    ad_group_criterion_status: st.StringType = Field(nullable=False, str_matches=ENUM)
    conversions_value: st.DoubleType = Field(nullable=False)

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
