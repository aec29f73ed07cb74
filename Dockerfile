# One image for the code location, the webserver, the daemon and the command line. See docs/deployment.md.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

COPY product.lock pyproject.toml README.md LICENSE /build/
RUN pip install --no-cache-dir --no-deps --require-hashes -r /build/product.lock
COPY ads_pipeline /build/ads_pipeline
RUN pip install --no-cache-dir --no-deps --no-build-isolation /build

COPY dagster.yaml /opt/dagster/dagster.yaml
RUN useradd --create-home ads && install -d -o ads -g ads /opt/dagster /var/lib/ads_pipeline
USER ads
ENV DAGSTER_HOME=/opt/dagster \
    ADS_PIPELINE_HOME=/var/lib/ads_pipeline

# Spark starts in half of the CPU time with an archive of its classes, which takes 200 MB.
RUN python -m ads_pipeline.spark.engine.archive_maker
