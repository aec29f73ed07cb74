"""Runs the revisions of the ledger's schema with Alembic.

Only `database.migrate` loads this module, because Alembic takes longer to load than most commands take to run.
"""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError


class UnknownRevision(Exception):
    """The database has a revision that this release does not know."""


def run_revisions(connection: sa.Connection) -> None:
    """Upgrade the schema in the transaction of this connection."""
    config = Config()
    config.set_main_option("script_location", "ads_pipeline.ledger:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise UnknownRevision from error
