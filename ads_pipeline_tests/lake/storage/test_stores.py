"""The rules that every store keeps, on a disk and in a bucket. `test_faults` has those of a service that fails."""

import mmap
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ads_pipeline.lake.storage.object_file import FIRST_PART, LARGEST_PART
from ads_pipeline.lake.storage.open_store import is_bucket, open_store
from ads_pipeline.lake.storage.store import Store
from ads_pipeline_tests.lake.storage.s3_server import SECRET

NAMES = ["a/customer_id=1/x.json", "a/b", "a/b-c", "a.b", "z/a%20b", "z/é"]  # "a/b-c" sorts before "a/b/"


@pytest.fixture
def store(store_location: str) -> Store:
    return open_store(store_location)


def list_names(store: Store, prefix: str = "") -> list[str]:
    return [info.name for info in store.list(prefix)]


class TestWriting:
    def test_created_file_is_read(self, store: Store) -> None:
        """A created file has the content, size, age and name it was given."""
        before = time.time() - 2
        assert store.create("a/b", b"content")
        assert store.read("a/b") == b"content"
        info = store.head("a/b")
        assert info is not None
        assert (info.name, info.size) == ("a/b", 7)
        assert before <= info.modified_at <= time.time() + 2
        assert list(store.list("")) == [info]

    def test_clock_is_that_of_the_files(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store's clock dates files, and does not follow the clock of this machine. Asking leaves no file."""
        store.create("a", b"")
        real = time.time()
        monkeypatch.setattr(time, "time", lambda: real + 8 * 86400)
        moments = [store.read_clock(), store.read_clock()]
        info = store.head("a")
        assert info is not None
        assert info.modified_at <= moments[0] <= moments[1] <= real + 60
        assert list_names(store) == ["a"]

    def test_listing_begins_after_a_name(self, store: Store) -> None:
        """Only names that follow are listed, whether the given name exists or not."""
        for name in NAMES:
            store.create(name, b"x")
        ordered = list_names(store)
        for number, name in enumerate(ordered):
            assert [info.name for info in store.list("", after=name)] == ordered[number + 1 :]
        assert [info.name for info in store.list("a", after="a/b0")] == [
            n for n in list_names(store, "a") if n > "a/b0"
        ]

    def test_name_is_given_once(self, store: Store) -> None:
        """A second creation returns False and changes nothing, even with the same content."""
        assert store.create("a/b", b"first")
        assert not store.create("a/b", b"second")
        assert not store.create("a/b", b"first")
        assert store.read("a/b") == b"first"

    @pytest.mark.parametrize("size", [0, 1, FIRST_PART, FIRST_PART + 1, LARGEST_PART + 1])
    def test_file_of_any_size(self, store: Store, size: int) -> None:
        """A file of no bytes, and one larger than a part, are written and read."""
        content = os.urandom(size)
        assert store.create("a", content)
        store.replace("b", content)
        assert store.read("a") == store.read("b") == content
        assert [info.size for info in store.list("")] == [size, size]

    def test_mapped_file_is_written(self, store: Store, tmp_path: Path) -> None:
        """A file that is mapped to memory is content as well."""
        (tmp_path / "spool").write_bytes(b"x" * 100_000)
        with (tmp_path / "spool").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            assert store.create("a", content)
        assert store.read("a") == b"x" * 100_000

    def test_replaced_file_is_read(self, store: Store) -> None:
        """A replacement creates a file or changes its content as a whole."""
        store.replace("a/b", b"first")
        store.replace("a/b", b"2")
        assert store.read("a/b") == b"2"
        assert list_names(store) == ["a/b"]

    def test_deleted_file_is_missing(self, store: Store) -> None:
        """A deleted file is gone, and its name is free again. A missing file is deleted without an error."""
        store.create("a/b", b"x")
        for _ in range(2):
            store.delete("a/b")
            assert store.head("a/b") is None
        store.delete("never/was")
        assert store.create("a/b", b"y")

    def test_one_of_many_threads_creates(self, store: Store) -> None:
        """Of threads that create the same file at once, one is told that it did, and its content is read."""
        with ThreadPoolExecutor(8) as pool:
            for number in range(5):
                name = f"race/{number}"
                won = list(pool.map(lambda each, name=name: store.create(name, b"%d" % each), range(8)))
                assert won.count(True) == 1
                assert store.read(name) == b"%d" % won.index(True)

    def test_durable_file_stays_as_it_is(self, store: Store) -> None:
        """To make a file durable changes nothing in it."""
        store.create("a", b"x")
        store.make_durable("a")
        assert store.read("a") == b"x"


class TestReading:
    def test_missing_file(self, store: Store) -> None:
        """To read a missing file is an error of its own, in an empty store and in another."""
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                store.read("a/b")
            with pytest.raises(FileNotFoundError):
                store.open("a/b")
            assert store.head("a/b") is None
            store.create("a/c", b"x")
        assert store.head("a") is None

    def test_file_is_read_in_parts(self, store: Store) -> None:
        """An open file is read from any position."""
        content = os.urandom(FIRST_PART + 3 * (1 << 20))
        store.create("a", content)
        with store.open("a") as file:
            assert file.read(10) == content[:10]
            assert file.seek(-8, os.SEEK_END) == len(content) - 8
            assert file.read() == content[-8:]
            assert file.read(1) == b""
            for start, size in ((0, FIRST_PART + 5), (FIRST_PART - 1, 2), (FIRST_PART, 1 << 21), (1, 1)):
                file.seek(start)
                assert file.read(size) == content[start : start + size]
                assert file.tell() == start + size

    def test_names_are_listed_in_order(self, store: Store) -> None:
        """A listing has every file below a folder in order of the names, and no file beside it."""
        for name in NAMES:
            assert store.create(name, b"x")
        assert list_names(store) == sorted(NAMES)
        assert list_names(store, "a") == ["a/b", "a/b-c", "a/customer_id=1/x.json"]
        assert list_names(store, "a/customer_id=1") == ["a/customer_id=1/x.json"]
        assert [name for name in NAMES if store.read(name) != b"x"] == []

    def test_missing_folder_has_no_files(self, store: Store) -> None:
        """A folder without files, an empty store, and a file that is taken for a folder, are empty."""
        assert list_names(store) == list_names(store, "a") == []
        assert not store.has_files("")
        store.create("a/b", b"x")
        assert list_names(store, "a/b") == list_names(store, "b") == []
        assert [prefix for prefix in ("", "a", "a/b", "b") if store.has_files(prefix)] == ["", "a"]

    def test_more_files_than_a_page(self, store: Store) -> None:
        """A listing has all files when there are more than a service lists at once."""
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(lambda number: store.create(f"{number:04}", b""), range(1_010)))
        assert list_names(store) == [f"{number:04}" for number in range(1_010)]


class TestLocation:
    def test_store_is_found_by_its_location(self, store: Store, store_location: str) -> None:
        """A store that was pickled reads the same files, and the pickle has no credentials."""
        store.create("a", b"x")
        pickled = pickle.dumps(store)
        assert SECRET.encode() not in pickled
        for again in (pickle.loads(pickled), open_store(store.location)):
            assert again.location == store.location == store_location
            assert again.read("a") == b"x"

    @pytest.mark.parametrize(
        ("location", "expected"),
        [("s3://b/p", True), ("gs://b/p", True), ("abfss://c@a/p", True), ("/s3:/b", False), ("s3:/b", False)],
    )
    def test_bucket_is_known_by_its_scheme(self, location: str, *, expected: bool) -> None:
        """A location with the scheme of a known service is a bucket, every other one a path."""
        assert is_bucket(location) is expected
