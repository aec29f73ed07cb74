"""Runs the command line as `python -m ads_pipeline`."""

from ads_pipeline.operations.cli.main import main

if __name__ == "__main__":
    main()
