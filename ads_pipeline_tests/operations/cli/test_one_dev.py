"""A second `ads-pipeline dev` is refused before it starts anything."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.operations.cli.local import one_dev
from ads_pipeline.operations.cli.local.one_dev import claim_home, require_free_port, require_no_daemon
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.builders import read_tree
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.orchestration.builders import open_instance
from ads_pipeline_tests.ports import reserve_port
from ads_pipeline_tests.spark.servers import build_environment

# Claims the home, and is then replaced by another program, as by Dagster in the product.
HOLDER = """
import os, sys
from pathlib import Path
from ads_pipeline.operations.cli.local.one_dev import claim_home
lock = claim_home(Path(sys.argv[1]), "http://127.0.0.1:3999")
os.execv(sys.executable, [sys.executable, "-c", "print('holds', flush=True); input()"])
"""


@contextmanager
def another_dev(home: Path) -> "Iterator[subprocess.Popen[str]]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)],
        env=build_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "holds\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_taken_port_is_refused_with_the_next_command(empty_cli: CommandLine) -> None:
    """The exit code is the documented one, and no file is written."""
    before = read_tree(empty_cli.home)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = empty_cli.process("dev", "--port", str(port))
    assert result.code == 64
    assert f"the UI cannot listen on 127.0.0.1, port {port}: Address already in use" in result.err
    assert "Name another port: ads-pipeline dev --port " in result.err
    assert read_tree(empty_cli.home) == before


def test_port_that_was_just_left_can_be_used() -> None:
    """The kernel keeps connections of an ended server for a while, which does not matter."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()
    require_free_port("127.0.0.1", port)


def test_unknown_host_is_refused() -> None:
    """With the host in the message."""
    with pytest.raises(BadCommand, match=r"cannot listen on no-such-host\.invalid"):
        require_free_port("no-such-host.invalid", 3000)


@pytest.mark.invariant("L6")
def test_second_dev_of_a_home_is_refused_while_the_first_one_lives(empty_cli: CommandLine) -> None:
    """The message names the process, its page and since when. When that is killed, the home is free."""
    with another_dev(empty_cli.home) as holder:
        result = empty_cli.process("dev", "--port", str(reserve_port()))
        assert result.code == 64
        assert f"{empty_cli.home} is in use: process {holder.pid} on {socket.gethostname()}" in result.err
        assert "serves it at http://127.0.0.1:3999 since 20" in result.err
        assert f"end it first: kill {holder.pid}" in result.err
        assert not (empty_cli.home / "engine").exists()
    lock = claim_home(empty_cli.home, "http://127.0.0.1:3000")
    assert lock is not None
    os.close(lock)


def test_lock_that_somebody_has_written_to_is_held_all_the_same(empty_cli: CommandLine) -> None:
    """Only the message is shorter then."""
    with another_dev(empty_cli.home):
        (empty_cli.home / "dagster" / one_dev.LOCK).write_text("[]")
        with pytest.raises(BadCommand, match=r"another ads-pipeline dev serves it\."):
            claim_home(empty_cli.home, "http://127.0.0.1:3000")


@pytest.fixture
def settings(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A deployment in Postgres, where a daemon sends a heartbeat every second."""
    monkeypatch.setattr(one_dev, "HEARTBEAT_INTERVAL", timedelta(seconds=10))
    monkeypatch.setattr(one_dev, "SECONDS_BETWEEN_LOOKS", 0.2)
    return read_settings({"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_DATABASE_URL": postgres_url})


def beat(instance: dg.DagsterInstance, at: datetime) -> None:
    instance.add_daemon_heartbeat(DaemonHeartbeat(at.timestamp(), "SENSOR", "a", None))


def test_daemon_that_sends_heartbeats_to_the_database_is_found(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one on another machine, which has no lock in this home."""
    stopped = threading.Event()
    with open_instance(tmp_path, postgres_url=settings.postgres_url) as instance:

        def beat_repeatedly() -> None:
            while not stopped.wait(0.5):
                beat(instance, datetime.now(UTC))

        beat(instance, datetime.now(UTC))
        thread = threading.Thread(target=beat_repeatedly)
        thread.start()
        try:
            with pytest.raises(BadCommand, match="another daemon of Dagster works on this database"):
                require_no_daemon(settings)
        finally:
            stopped.set()
            thread.join()
    assert "A daemon of Dagster sent a heartbeat" in capsys.readouterr().out


def test_daemon_that_has_ended_is_no_obstacle(settings: Settings, tmp_path: Path) -> None:
    """A recent heartbeat costs a wait of one interval, an old one nothing. A new database has no heartbeat."""
    require_no_daemon(settings)
    with open_instance(tmp_path, postgres_url=settings.postgres_url) as instance:
        require_no_daemon(settings)
        beat(instance, datetime.now(UTC) - timedelta(minutes=5))
        started = time.monotonic()
        require_no_daemon(settings)
        assert time.monotonic() - started < 10
        beat(instance, datetime.now(UTC))
        require_no_daemon(settings)


def test_home_of_a_file_database_is_not_asked_for_daemons(tmp_path: Path) -> None:
    """The lock in the home is enough."""
    require_no_daemon(read_settings({"ADS_PIPELINE_HOME": str(tmp_path)}))
    assert list(tmp_path.iterdir()) == []
