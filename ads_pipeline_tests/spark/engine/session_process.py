"""A process with a Spark session of its own. It prints its options and waits until its standard input closes.

Run it as `python -m ads_pipeline_tests.spark.engine.session_process HOME MASTER`.
"""

import json
import sys
from pathlib import Path

from ads_pipeline.settings.environment import read_settings
from ads_pipeline.spark.session import start_spark


def main(home: Path, master: str) -> None:
    settings = read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": master})
    spark = start_spark(settings)
    print(json.dumps(dict(spark.sparkContext.getConf().getAll())), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
