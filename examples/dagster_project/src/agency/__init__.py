"""An agency's own Dagster project, with two deployments of ads_pipeline inside."""
