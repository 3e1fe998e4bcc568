"""Metrics that are exported while feeds and pipelines run, read as Prometheus reads them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import levada
import numpy
import pytest
import ranks
from levada.base import metrics
from prometheus_client.parser import text_string_to_metric_families


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Returns the values by metric and last label. Checks that each is a documented counter and occurs once."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "counter" and family.documentation.endswith(".")
        for sample in family.samples:
            values = found.setdefault(sample.name, {})
            key = ",".join(sample.labels.values())
            assert key not in values
            values[key] = sample.value
    return found


def ask(port: int | None, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(response.read().decode())


def batches(count: int) -> list[dict[str, Any]]:
    return [{"x": numpy.full((2, 8), number, numpy.float32)} for number in range(count)]


def test_a_port_serves_current_numbers() -> None:
    feed = levada.Feed(batches(5))
    with levada.MetricsExporter("127.0.0.1:0", feed, labels={"rank": 'a "b"\\\n'}) as exporter:
        assert ask(exporter.port) == ""
        for number, _ in enumerate(feed, 1):
            numbers = parsed(ask(exporter.port))
            assert numbers["levada_feed_batches_total"] == {'a "b"\\\n': number}
            assert numbers["levada_feed_bytes_total"] == {'a "b"\\\n': number * 64}
            assert numbers["levada_feed_samples_total"] == {'a "b"\\\n': number}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(exporter.port, "/elsewhere")
        port = exporter.port
    with pytest.raises(OSError):
        ask(port)


def test_a_metric_shows_its_name_labels_and_value() -> None:
    feed = levada.Feed(batches(3))
    assert len(list(feed)) == 3
    shown = [repr(metric) for metric in feed.metrics({"rank": "0"})]
    assert '<Metric levada_feed_batches_total{rank="0"} = 3>' in shown


def test_a_wait_counts_while_it_lasts() -> None:
    go_on = threading.Event()

    def slow() -> Any:
        yield from batches(1)
        go_on.wait(60)

    feed = levada.Feed(slow())
    with levada.MetricsExporter("127.0.0.1:0", feed) as exporter:
        waits = []

        def watch() -> None:
            deadline = time.monotonic() + 30
            try:
                while time.monotonic() < deadline and (not waits or waits[-1] < 0.2):
                    waits.append(parsed(ask(exporter.port)).get("levada_feed_wait_seconds_total", {}).get("", 0.0))
            finally:
                go_on.set()

        watcher = threading.Thread(target=watch)
        iterator = iter(feed)
        next(iterator)
        watcher.start()
        assert next(iterator, None) is None
        watcher.join()
    assert waits[-1] >= 0.2 and waits == sorted(waits)


def test_a_pipeline_exports_numbers_by_stage(tmp_path: pathlib.Path) -> None:
    run = levada.Pipeline(range(100)).map(lambda item: item + 1, name="one more").batch(10).run(workers=1)
    path = tmp_path / "numbers.prom"
    with run, levada.MetricsExporter(path, run, every=60):
        assert path.read_text() == ""
        assert len(list(run)) == 10
    numbers = parsed(path.read_text())
    assert numbers["levada_pipeline_items_total"]["one more"] == 100
    assert [name.name for name in tmp_path.iterdir()] == ["numbers.prom"]


def test_a_function_is_called_periodically_and_at_the_end() -> None:
    feed, told = levada.Feed(batches(3)), list[dict[str, float]]()
    called = threading.Event()

    def tell(numbers: dict[str, float]) -> None:
        told.append(numbers)
        called.set()

    with levada.MetricsExporter(tell, feed, every=0.01):
        assert called.wait(20)
        list(feed)
    assert told[-1]["levada_feed_batches_total"] == 3


def test_an_exception_of_the_function_is_a_warning() -> None:
    def fail(numbers: dict[str, float]) -> None:
        raise ConnectionError("nobody there")

    feed = levada.Feed(batches(3))
    with pytest.warns(RuntimeWarning, match="could not be exported: ConnectionError"):
        with levada.MetricsExporter(fail, feed, every=60):
            assert len(list(feed)) == 3


def test_a_function_that_hangs_does_not_block_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_GRACE", 0.2)
    go_on = threading.Event()
    exporter = levada.MetricsExporter(lambda _: go_on.wait(60), levada.Feed(batches(3)), every=60)
    with pytest.warns(RuntimeWarning, match="the last metrics have not been exported within 0.2 s"):
        exporter.close()
    go_on.set()


def test_a_forked_child_leaves_an_exporter_to_its_parent() -> None:
    script = """
import os, levada
with levada.MetricsExporter("127.0.0.1:0", levada.Feed(range(3))) as exporter:
    child = os.fork()
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as ran:
        try:
            assert ran.communicate(timeout=30)[0] == "0\n"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ran.pid, signal.SIGKILL)  # kills a hung child, too


def hold_off_slow_clients(port: int | None) -> None:
    """Checks that slow clients do not delay others, are refused above a limit, and are disconnected although they keep
    sending."""
    assert port is not None
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), 10):
        pass  # The port is only open on 127.0.0.1.
    with contextlib.ExitStack() as opened:
        slow = [opened.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(5)]
        for each in slow:
            each.send(b"G")
        assert "levada_feed_batches_total" in ask(port)
        assert not select.select(slow, [], [], 0)[0], "a slow client delayed another one until it was disconnected"
        slow += [opened.enter_context(socket.create_connection(("127.0.0.1", port), 10)) for _ in range(60)]
        held = len(slow)
        end = time.monotonic() + 60
        while held and time.monotonic() < end:
            closed, writable, _ = select.select(slow, slow, [], 0.1)
            held = len(slow) - len(closed)
            for each in set(writable) - set(closed):
                with contextlib.suppress(OSError):
                    each.send(b"x")
            time.sleep(0.1)
        assert not held
    assert "levada_feed_batches_total" in ask(port)


@pytest.mark.long
def test_slow_clients_hold_no_threads_or_descriptors_and_delay_no_others() -> None:
    feed = levada.Feed(batches(1))
    assert len(list(feed)) == 1
    with levada.MetricsExporter(0, feed) as exporter:
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
        hold_off_slow_clients(exporter.port)
        assert threading.active_count() == threads
        end = time.monotonic() + 60
        while len(os.listdir("/proc/self/fd")) > descriptors and time.monotonic() < end:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_malformed_requests_are_refused() -> None:
    with levada.MetricsExporter("localhost:0", levada.Feed([1])) as exporter:
        for request, expected in (
            (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
            (b"\0\r\n\r\n", b"HTTP/1.1 405 "),
            (b"GET /etc HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
            (b"GET /metrics?x HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 "),
            (b"GET / " + b"x" * 9000, b""),
        ):
            with socket.create_connection(("localhost", exporter.port or 0), 10) as client:
                client.sendall(request)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1000).startswith(expected) and (expected or not client.recv(1000)), request


def test_a_source_that_fails_does_not_end_the_server() -> None:
    class Broken:
        def metrics(self, labels: Any = None) -> Any:
            raise RuntimeError

    with levada.MetricsExporter(0, Broken()) as exporter:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                ask(exporter.port)


@pytest.mark.long
def test_the_port_of_the_command_limits_slow_clients(data: pathlib.Path) -> None:
    port = ranks.free_ports()
    ran = feed_command(data, "--metrics", port, "--compute-ms", 20, "--epochs", 1000)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if "levada_feed_batches_total" in ask(port):
                    break
            time.sleep(0.1)
        hold_off_slow_clients(port)
    finally:
        ran.terminate()
        ran.communicate(timeout=60)


def test_an_unavailable_target_is_an_error(tmp_path: pathlib.Path) -> None:
    feed = levada.Feed(batches(3))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(OSError, match="in use.*: '127.0.0.1:"):
            levada.MetricsExporter(f"127.0.0.1:{taken.getsockname()[1]}", feed)
    with pytest.raises(FileNotFoundError) as missing:
        levada.MetricsExporter(tmp_path / "no folder" / "numbers", feed)
    assert str(missing.value).endswith(f": '{tmp_path}/no folder/numbers'")
    with pytest.raises(levada.InvalidArgument, match="every"):
        levada.MetricsExporter(tmp_path / "numbers", feed, every=0)
    with pytest.raises(levada.InvalidArgument, match="65535"):
        levada.MetricsExporter(70000, feed)
    with pytest.raises(levada.InvalidArgument, match="nothing to export"):
        levada.MetricsExporter(tmp_path / "numbers")
    with pytest.raises(levada.InvalidArgument, match="only feeds and pipeline runs have metrics, got 5"):
        levada.MetricsExporter(tmp_path / "numbers", 5)  # type: ignore[arg-type]
    for labels in ({"1 a": "x"}, {"stage": "x"}, {"rank": 1}, {"__name__": "x"}, {"": "x"}):
        with pytest.raises(levada.InvalidArgument, match="labels must be strings by name"):
            levada.MetricsExporter(tmp_path / "numbers", feed, labels=labels)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["localhost:abc", ":9100", "localhost:", "numbers:1.prom", "::1:-1", True, None, 1.5])
def test_a_target_that_is_neither_address_nor_path_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, to: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(levada.InvalidArgument, match=f"to must be .*got {to!r}"):
        levada.MetricsExporter(to, levada.Feed([1]))
    assert list(tmp_path.iterdir()) == []
    for path in ("./numbers:1", pathlib.Path("numbers:2"), "numbers"):
        levada.MetricsExporter(path, levada.Feed([1])).close()
    assert {each.name for each in tmp_path.iterdir()} == {"numbers:1", "numbers:2", "numbers"}
    levada.MetricsExporter(numpy.int64(0), levada.Feed([1])).close()


def feed_command(data: pathlib.Path, *arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "levada", "feed", data, "--tokenizer", "bytes", "--mesh", "dp=2", "--batch", 1, "--seq", 8, "--json", *arguments]
    return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "data.txt"
    path.write_text("a" * 4000)
    return path


@pytest.mark.parametrize("engine", ["shm", "inproc"])
def test_each_rank_of_the_command_writes_a_file(tmp_path: pathlib.Path, data: pathlib.Path, engine: str) -> None:
    ran = feed_command(data, "--engine", engine, "--metrics", tmp_path / "numbers.prom")
    out, fault = ran.communicate(timeout=60)
    assert ran.returncode == 0, fault
    report = json.loads(out)
    for rank, share in enumerate(report["ranks"]):
        numbers = parsed((tmp_path / f"numbers.rank{rank}.prom").read_text())
        assert numbers["levada_feed_batches_total"] == {str(rank): share["batches"]}
        assert numbers["levada_feed_bytes_total"] == {str(rank): share["bytes"]}


@pytest.mark.long
def test_each_rank_of_the_command_answers_at_a_port(data: pathlib.Path) -> None:
    port = ranks.free_ports()
    ran = feed_command(data, "--metrics", f"127.0.0.1:{port}", "--compute-ms", 20)
    seen: list[float] = []
    while ran.poll() is None and len(seen) < 3:
        try:
            numbers = [parsed(ask(port + rank)) for rank in (0, 1)]
        except OSError:
            continue
        assert [list(each["levada_feed_batches_total"]) for each in numbers] == [["0"], ["1"]]
        seen.append(numbers[1]["levada_feed_batches_total"]["1"])
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask(port, "/elsewhere")
    assert ran.communicate(timeout=60)[1] == "" and ran.returncode == 0
    assert len(seen) == 3 and seen == sorted(seen)


@pytest.mark.long
def test_a_silent_client_does_not_delay_the_next_one(data: pathlib.Path) -> None:
    port = ranks.free_ports()
    ran = feed_command(data, "--metrics", f"127.0.0.1:{port}", "--compute-ms", 20)
    while ran.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
                assert ask(port)
                assert silent.recv(1) == b""
            break
        except ConnectionRefusedError:
            continue
    assert ran.communicate(timeout=60)[1] == "" and ran.returncode == 0


def test_ports_that_are_invalid_or_taken_end_the_command(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for given, said in (
        ("0", "--metrics 0: ports range from 1 to 65535"),
        ("65535", "--metrics 65535: ports range from 1 to 65535"),
        (tmp_path / "no folder" / "numbers", "--metrics"),
        ("127.0.0.1:99999999999999", "--metrics"),
        ("here:9x", "it must be a port, HOST:PORT or a file; for a file of this name, write ./here:9x"),
        ("-1", "for a file of this name, write ./-1"),
    ):
        ran = feed_command(data, "--metrics", given)
        assert said in ran.communicate(timeout=60)[1] and ran.returncode == 2, given
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = feed_command(data, "--metrics", f"127.0.0.1:{taken.getsockname()[1]}")
        out, fault = ran.communicate(timeout=60)
    assert ran.returncode == 1 and ": Address already in use; choose another port" in fault
    assert fault.count("\n") == 1
