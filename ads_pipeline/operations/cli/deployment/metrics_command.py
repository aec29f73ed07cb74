"""The command `ads-pipeline metrics`: prints the metrics of the deployment, or writes them to a file."""

from datetime import UTC, datetime
from pathlib import Path

import typer

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.storage.durable_files import atomic_write
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.operations.metrics import MetricsReader
from ads_pipeline.settings.environment import Settings


def write_metrics(settings: Settings, output: Path | None) -> None:
    """Print the metrics, or replace the file by them. Raises BadCommand when it cannot be written."""
    with open_ledger(settings) as ledger:
        text = MetricsReader(settings=settings, ledger=ledger, now=datetime.now(UTC)).text
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with atomic_write(output, by_umask=True) as file:
            file.write(text)
    except OSError as error:
        advice = "name a file in a directory that exists and that you may write to"
        raise BadCommand(f"--output {printable(str(output))}: {error.strerror}; {advice}") from error
