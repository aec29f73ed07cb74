"""Other users of the machine cannot use, deceive or read the Spark that the product starts itself."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import pytest

from ads_pipeline.spark.engine_address import request_server
from ads_pipeline.spark.private_directory import PREFIX, SECONDS_TO_LOCK, remove_abandoned
from ads_pipeline_tests.spark.engine import session_process
from ads_pipeline_tests.spark.engine.remote_object import is_deserialized
from ads_pipeline_tests.spark.engine.test_engine import descendants, run_client, supervisor, wait_until_gone
from ads_pipeline_tests.spark.servers import build_environment

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
SECONDS_TO_READ = 5.0  # a JVM that deserializes the object takes less than a second
LISTENING = "0A"
NAMES = "::1 localhost\n127.0.0.1 localhost\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """A process that has started Spark, and the directory in which its temporary files are."""

    pid: int
    temporary: Path
    options: Mapping[str, str]
    kill: Callable[[], None]


@contextmanager
def own_session(home: Path, variables: Mapping[str, str]) -> Iterator[Spark]:
    """A process that starts Spark without an engine."""
    process = subprocess.Popen(
        [sys.executable, "-m", session_process.__name__, str(home), "local[2]"],
        env={**build_environment(), "TMPDIR": str(home), **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout
        assert process.stdin
        described = json.loads(process.stdout.readline())
        yield Spark(pid=process.pid, temporary=home, options=described, kill=process.kill)
        process.stdin.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with own_session(tmp_path_factory.mktemp("own"), {"SPARK_LOCAL_IP": "0.0.0.0"}) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    """The engine, once it has warm workers."""
    home, temporary = tmp_path_factory.mktemp("shared"), tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setenv("SPARK_LOCAL_IP", "0.0.0.0")
        with supervisor(home) as process:
            run_client(home)
            yield Spark(pid=process.pid, temporary=temporary, options={}, kill=process.kill)


@pytest.fixture(scope="module", params=["own", "shared"])
def spark_process(request: pytest.FixtureRequest) -> Spark:
    """Each kind of Spark that the product starts itself."""
    started: Spark = request.getfixturevalue(request.param)
    return started


def find_listening(pid: int) -> dict[int, str]:
    """The address of each TCP port on which this process and those below it listen."""
    sockets = {target for each in (pid, *descendants(pid)) for target in _find_open(each)}
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and f"socket:[{fields[9]}]" in sockets:
                address, _, port = fields[1].partition(":")
                found[int(port, 16)] = _decode(address)
    return found


def _find_open(pid: int) -> list[str]:
    return [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]


def _decode(address: str) -> str:
    """The kernel writes words of four bytes in the order of the machine."""
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    found = ip_address(b"".join(words))
    return str(found.ipv4_mapped or found) if isinstance(found, IPv6Address) else str(found)


def test_own_spark_listens_on_loopback_only(spark_process: Spark) -> None:
    """No port of the process and its JVM is open to another machine, whatever SPARK_LOCAL_IP says."""
    addresses = set(find_listening(spark_process.pid).values())
    assert addresses
    assert {address for address in addresses if not ip_address(address).is_loopback} == set()


def test_own_spark_reads_no_object_of_another_user(spark_process: Spark) -> None:
    """A port that is sent a serialized Java object without the secret does not deserialize it."""
    ports = find_listening(spark_process.pid)
    assert len(ports) >= 3, "the driver's ports are among them"
    assert [port for port in ports if is_deserialized(port, SECONDS_TO_READ)] == []


def test_own_spark_has_no_secret_in_a_command_line(spark_process: Spark) -> None:
    """Spark makes the secret itself and keeps it in memory."""
    commands = " ".join(descendants(spark_process.pid).values())
    assert "spark.authenticate=true" in commands
    assert "secret" not in commands.lower()


def test_files_of_own_spark_are_private(spark_process: Spark) -> None:
    """Blocks, spilled rows and artifacts are below a directory that only their owner can enter."""
    directories = [each for each in spark_process.temporary.iterdir() if each.is_dir()]
    assert [each for each in directories if each.stat().st_mode & 0o077] == []
    assert [each for each in directories if list(each.glob("blockmgr-*"))]


def test_options_of_the_user_win(tmp_path: Path) -> None:
    """`spark-defaults.conf` of the user replaces each of the product's defaults."""
    chosen = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.driver.host": "localhost"}
    chosen |= {"spark.authenticate": "false", "spark.local.dir": str(tmp_path / "disk")}
    lines = [f"{name} {value}\n" for name, value in chosen.items()]
    (tmp_path / "spark-defaults.conf").write_text("".join(lines))
    with own_session(tmp_path, {"SPARK_CONF_DIR": str(tmp_path)}) as running:
        assert chosen.items() <= running.options.items()
        assert list((tmp_path / "disk").glob("blockmgr-*"))


@pytest.mark.invariant("L6")
def test_directory_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """The next process removes it, once it is a minute old. That of a live process stays, however old it is."""
    with own_session(tmp_path, {}) as running:
        (directory,) = tmp_path.glob(f"{PREFIX}*")
        below = list(descendants(running.pid))
        make_old(directory)
        remove_abandoned(tmp_path)
        assert directory.exists()
        running.kill()
        wait_until_gone(below)
    make_old(directory)
    remove_abandoned(tmp_path)
    assert not directory.exists()


def make_old(directory: Path) -> None:
    past = time.time() - SECONDS_TO_LOCK - 1
    os.utime(directory, (past, past))


def test_directory_is_removed_at_the_end(tmp_path: Path) -> None:
    """A process that ends by itself leaves no directory."""
    with own_session(tmp_path, {}):
        assert list(tmp_path.glob(f"{PREFIX}*"))
    assert list(tmp_path.glob(f"{PREFIX}*")) == []


def test_token_goes_to_the_address_of_the_engine(tmp_path: Path) -> None:
    """Where `localhost` is ::1 first, a listener of another user on the engine's port is not connected."""
    names = tmp_path / "hosts"
    names.write_text(NAMES)
    with supervisor(tmp_path), socket.socket(socket.AF_INET6) as other:
        answer = request_server(tmp_path)
        assert answer is not None
        other.bind(("::1", answer.port))
        other.listen()
        other.setblocking(False)
        client, _log = run_client(tmp_path, prefix=with_names(names))
        assert client["session"].startswith("pyspark.sql.connect.")
        with pytest.raises(BlockingIOError):
            other.accept()


def with_names(names: Path) -> tuple[str, ...]:
    """What starts a command in a mount namespace of its own, in which this file resolves names. Needs no root."""
    mount = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(names)
