"""A bucket's service that fails: what a store answers is true, or an OSError without secrets."""

import errno
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest

from ads_pipeline.lake.storage.object_store import Limits, ObjectStore
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.lake.storage.fault_proxy import LOST_ANSWERS, TRANSIENT, Fault, FaultProxy, start_fault_proxy
from ads_pipeline_tests.lake.storage.s3_server import KEY_ID, SECRET

LIMITS = Limits(request=timedelta(seconds=0.3), repeat=timedelta(seconds=8), attempts=5)


@pytest.fixture(scope="module")
def shared_proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    with start_fault_proxy(s3_endpoint) as proxy:
        proxy.hold = 0.6
        yield proxy


@pytest.fixture
def proxy(shared_proxy: FaultProxy) -> Iterator[FaultProxy]:
    """A proxy that fails nothing yet."""
    shared_proxy.choose = lambda _method, _path: None
    shared_proxy.fired.clear()
    shared_proxy.requests.clear()
    yield shared_proxy
    shared_proxy.choose = lambda _method, _path: None


@pytest.fixture
def store(proxy: FaultProxy, s3_location: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A store behind the proxy, whose service is known to have conditional put."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    opened = ObjectStore(s3_location, LIMITS)
    opened.require_exclusive_create()
    return opened


class TestCreate:
    @pytest.mark.parametrize("fault", TRANSIENT)
    def test_own_file_is_known_after_a_fault(self, store: ObjectStore, proxy: FaultProxy, fault: Fault) -> None:
        """After any fault the file is created once, and its creator is told so, even if an answer was lost."""
        proxy.fail_next(fault)
        assert store.create("a", b"mine")
        assert proxy.fired == {fault: 1}
        assert store.read("a") == b"mine"
        assert not store.create("a", b"mine")

    @pytest.mark.parametrize("fault", TRANSIENT)
    def test_file_of_another_stays_after_a_fault(self, store: ObjectStore, proxy: FaultProxy, fault: Fault) -> None:
        """After any fault, a file that another call created is not mistaken for an own one, not even one alike."""
        store.create("a", b"same")
        proxy.fail_next(fault)
        assert not store.create("a", b"same")
        assert proxy.fired == {fault: 1}

    @pytest.mark.parametrize("first", LOST_ANSWERS)
    @pytest.mark.parametrize("second", [Fault.CONFLICT, Fault.PRECONDITION_FAILED, Fault.TIMEOUT, Fault.RESET])
    def test_lost_answer_before_another_fault(
        self, store: ObjectStore, proxy: FaultProxy, first: Fault, second: Fault
    ) -> None:
        """A lost answer is recognised although the next request, of either kind, fails as well."""
        for number, methods in enumerate(("PUT", "PUT HEAD", "PUT HEAD GET")):
            proxy.fail_next(first, second, methods=methods)
            assert store.create(f"{number}", b"mine")
            assert store.read(f"{number}") == b"mine"
        assert proxy.fired[first] == 3

    def test_object_of_another_tool_is_of_another(self, store: ObjectStore) -> None:
        """An object that was written without a name of its writer is not an own one."""
        store.replace("a", b"x")
        assert not store.create("a", b"x")

    def test_refused_service_is_told_from_a_taken_name(
        self, store: ObjectStore, proxy: FaultProxy, s3_location: str
    ) -> None:
        """A service that ignores the condition is refused before the first file is written."""
        proxy.removed_headers = frozenset({"if-none-match"})
        try:
            refused = ObjectStore(f"{s3_location}/refused", LIMITS)
            with pytest.raises(OSError, match="no conditional put") as failure:
                refused.create("a", b"x")
        finally:
            proxy.removed_headers = frozenset()
        assert failure.value.errno == errno.ENOTSUP
        assert list(store.list("refused/a")) == []


def replace_and_read(store: ObjectStore) -> bytes:
    store.replace("old", b"new")
    return store.read("old")


def delete_and_look(store: ObjectStore) -> object:
    store.delete("old")
    return store.head("old")


VERBS: dict[str, tuple[str, Callable[[ObjectStore], object], object]] = {
    "read": ("GET", lambda store: store.read("old"), b"old"),
    "head": ("HEAD", lambda store: (info := store.head("old")) and info.size, 3),
    "head of a missing file": ("HEAD", lambda store: store.head("missing"), None),
    "list": ("GET", lambda store: [info.name for info in store.list("")], ["old"]),
    "has files": ("GET", lambda store: store.has_files(""), True),
    "replace": ("PUT", replace_and_read, b"new"),
    "delete": ("POST", delete_and_look, None),
}


class TestOtherVerbs:
    @pytest.mark.parametrize("fault", TRANSIENT)
    @pytest.mark.parametrize("verb", VERBS)
    def test_answer_is_true_or_an_error(self, store: ObjectStore, proxy: FaultProxy, fault: Fault, verb: str) -> None:
        """One fault is survived, or is an OSError. It never makes a file look missing, short, old or deleted."""
        methods, call, expected = VERBS[verb]
        store.create("old", b"old")
        proxy.fail_next(fault, methods=methods)
        try:
            assert call(store) == expected
        except OSError as error:
            impossible_there = {Fault.CONFLICT, Fault.PRECONDITION_FAILED}
            assert fault in impossible_there or (verb == "list" and fault is Fault.CUT), error  # noqa: PT017
        assert proxy.fired == {fault: 1}

    def test_missing_file_is_told_from_a_fault(self, store: ObjectStore, proxy: FaultProxy) -> None:
        """A service that fails for good is an error, never a missing file or an empty folder."""
        store.create("old", b"old")
        proxy.choose = lambda _method, _path: Fault.FORBIDDEN
        for call in (
            lambda: store.read("old"),
            lambda: store.head("old"),
            lambda: list(store.list("")),
            lambda: store.has_files(""),
            lambda: store.create("new", b"x"),
            lambda: store.replace("old", b"x"),
            lambda: store.delete("old"),
        ):
            with pytest.raises(PermissionError) as failure:
                call()
            assert "the bucket refuses access (403" in str(failure.value)

    def test_replaced_file_is_not_read_in_parts(self, store: ObjectStore) -> None:
        """An open file has one content: when it was replaced since, the next part is an error."""
        store.create("a", os.urandom(4 << 20))
        with store.open("a") as file:
            assert len(file.read(100)) == 100
            store.replace("a", os.urandom(4 << 20))
            with pytest.raises(OSError, match="was replaced"):
                file.read()


class TestSecrets:
    @pytest.mark.invariant("X1")
    @pytest.mark.parametrize("fault", [Fault.FORBIDDEN, Fault.SERVER_ERROR, Fault.CONFLICT, Fault.RESET])
    def test_no_message_has_credentials(self, store: ObjectStore, proxy: FaultProxy, fault: Fault) -> None:
        """Neither an error nor its traceback shows what the service answered, or the environment."""
        store.create("old", b"old")
        proxy.choose = lambda _method, _path: fault
        patient = ObjectStore(store.location, Limits(repeat=timedelta(seconds=0.2), attempts=2))
        for call in (lambda: patient.read("old"), lambda: patient.replace("old", b"")):
            with pytest.raises(OSError, match=r"bucket|object") as failure:
                call()
            shown = "".join(traceback.format_exception(failure.value))
            assert store.location in shown
            assert not [text for text in (SECRET, KEY_ID, "AWSAccessKeyId", "Authorization") if text in shown]


class TestStorm:
    def test_one_creator_in_a_storm(self, store: ObjectStore, proxy: FaultProxy) -> None:
        """While a third of all requests fail, threads race for names. At most one of them is told that it created the
        file, and its content is read. One that was told of a failure may have created it."""
        proxy.fail_at_random(seed=17, rate=0.33)
        outcomes: Counter[str] = Counter()
        with ThreadPoolExecutor(6) as pool:
            for number in range(examples(8)):
                answers = list(pool.map(lambda each, name=f"{number}": _race(store, name, each), range(6)))
                outcomes.update(str(answer) for answer in answers)
                assert answers.count(True) <= 1
                proxy.choose, storm = (lambda _method, _path: None), proxy.choose
                content = store.read(f"{number}") if store.head(f"{number}") else None
                proxy.choose = storm
                if True in answers:
                    assert content == b"%d" % answers.index(True)
                elif content is not None:
                    assert answers[int(content)] is None
                if False in answers:
                    assert content is not None
        assert sum(proxy.fired.values()) > 20
        print(f"\nfaults fired: {dict(sorted(proxy.fired.items()))}; answers: {dict(outcomes)}")


def _race(store: ObjectStore, name: str, racer: int) -> bool | None:
    with suppress(OSError):
        return store.create(name, b"%d" % racer)
    return None
