"""The command line `ads-pipeline`. It asks and shows; it decides nothing, and it knows nothing of Dagster."""
