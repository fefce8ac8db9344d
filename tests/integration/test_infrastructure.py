"""The parts that the other tests stand on: they must count right, clean up when killed, and keep tests apart."""

import http.client
import os
import signal
import sys
import textwrap
import threading
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from tests.support import data
from tests.support.leaks import take_stock
from tests.support.processes import HOME_VARIABLE, Process, eventually
from tests.support.proxy import CountingProxy, Fault, Request
from tests.support.s3 import S3Client, S3Error
from tests.support.seaweedfs import Bucket, SeaweedFS

REPOSITORY = Path(__file__).parents[2]


def _python(code: str, *, log: Path, limit_seconds: float = 30) -> Process:
    return Process([sys.executable, "-c", textwrap.dedent(code)], log=log, limit_seconds=limit_seconds, cwd=REPOSITORY)


@pytest.fixture
def proxied(counting_proxy: CountingProxy, s3: SeaweedFS) -> S3Client:
    return S3Client(counting_proxy.endpoint, s3.identities["admin"])


class TestSeaweedFS:
    def test_objects_with_hard_names_come_back_as_written(self, bucket: Bucket) -> None:
        names = ["plain", "a folder/with space", "per%cent+plus", "ünï", "a.b.c"]
        for name in names:
            bucket.put(name, name.encode())
        assert bucket.keys() == sorted(names)
        assert [bucket.get(name) for name in names] == [name.encode() for name in names]
        assert bucket.keys("a ") == ["a folder/with space"]

    def test_a_fresh_bucket_is_empty_and_a_missing_one_is_an_error(self, bucket: Bucket, s3: SeaweedFS) -> None:
        assert bucket.keys() == []
        with pytest.raises(S3Error, match="NoSuchBucket"):
            Bucket("never-made", s3).put("key", b"")

    def test_the_reader_may_not_write_and_wrong_secrets_are_refused(self, bucket: Bucket, s3: SeaweedFS) -> None:
        bucket.put("key", b"value")
        reader = s3.client(identity="reader")
        assert reader.request("GET", f"/{bucket.name}/key") == b"value"
        with pytest.raises(S3Error, match="403"):
            reader.request("PUT", f"/{bucket.name}/key", body=b"other")
        stranger = SeaweedFS().identities["admin"]
        with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
            S3Client(s3.endpoint, stranger).request("GET", f"/{bucket.name}/key")

    def test_obstore_reads_with_nothing_but_the_environment(self, bucket: Bucket, tmp_path: Path) -> None:
        bucket.put("key", b"value")
        code = f"""
            from obstore.store import from_url
            print(bytes(from_url({bucket.uri()!r}).get("key").bytes()).decode())
        """
        env = {**os.environ, **bucket.server.environment()}
        argv = [sys.executable, "-c", textwrap.dedent(code)]
        with Process(argv, log=tmp_path / "log", limit_seconds=30, env=env) as process:
            assert process.check(20) == "value\n"

    def test_an_uploaded_directory_keeps_its_layout(self, bucket: Bucket, tmp_path: Path) -> None:
        data.write_parquet(tmp_path / "deep", shards=2, rows=3)
        keys = bucket.upload(tmp_path, "root/")
        assert keys == ["root/deep/shard-00000.parquet", "root/deep/shard-00001.parquet"]
        assert bucket.keys() == keys

    def test_it_ends_and_leaves_nothing_when_its_starter_is_killed(self, tmp_path: Path, home: Path) -> None:
        code = """
            import time
            from tests.support.seaweedfs import SeaweedFS
            with SeaweedFS() as s3:
                print(s3.directory, s3.pid, s3.endpoint, flush=True)
                time.sleep(60)
        """
        with _python(code, log=tmp_path / "log", limit_seconds=60) as starter:
            line = eventually(lambda: starter.output().split(), 40, "a server")
            directory, pid, port = Path(line[0]), int(line[1]), urlsplit(line[2]).port
            assert directory.exists()
            assert list(Path("/tmp").glob(f"seaweedfs-s3-{port}*"))
            starter.signal(signal.SIGKILL)
            eventually(lambda: not psutil.pid_exists(pid), 10, "the server's end")
            eventually(lambda: not directory.exists(), 10, "its files to go")
            eventually(lambda: not list(Path("/tmp").glob(f"seaweedfs-s3-{port}*")), 10, "its sockets to go")


class TestCountingProxy:
    def test_every_request_is_recorded_with_its_range_status_and_bytes(
        self, proxied: S3Client, counting_proxy: CountingProxy, bucket: Bucket
    ) -> None:
        body = bytes(range(256)) * 4000
        proxied.request("PUT", f"/{bucket.name}/a key", body=body)
        assert proxied.request("GET", f"/{bucket.name}/a key") == body
        assert proxied.list_keys(bucket.name) == ["a key"]
        with pytest.raises(S3Error, match="404"):
            proxied.request("GET", f"/{bucket.name}/none")
        seen = [(e.request.method, e.request.key, e.status) for e in counting_proxy.exchanges]
        assert seen == [("PUT", "a key", 200), ("GET", "a key", 200), ("GET", "", 200), ("GET", "none", 404)]
        assert counting_proxy.bytes_sent("a key") == len(body)
        assert [e.request.bucket for e in counting_proxy.gets()] == [bucket.name, bucket.name]
        counting_proxy.clear()
        assert counting_proxy.exchanges == []

    def test_obstore_reads_ranges_through_it_on_kept_connections(
        self, counting_proxy: CountingProxy, bucket: Bucket, tmp_path: Path
    ) -> None:
        bucket.put("key", b"0123456789")
        code = f"""
            from obstore.store import from_url
            store = from_url({bucket.uri()!r})
            print([bytes(store.get_range("key", start=i, end=i + 2)).decode() for i in range(4)])
            print(store.head("key")["size"])
        """
        env = {**os.environ, **bucket.server.environment(endpoint=counting_proxy.endpoint)}
        argv = [sys.executable, "-c", textwrap.dedent(code)]
        with Process(argv, log=tmp_path / "log", limit_seconds=30, env=env) as process:
            assert process.check(20) == "['01', '12', '23', '34']\n10\n"
        ranges = [(e.request.range, e.status, e.body_bytes) for e in counting_proxy.gets("key")]
        assert ranges == [(f"bytes={i}-{i + 1}", 206, 2) for i in range(4)]

    def test_scripted_faults_reach_the_client_and_only_the_chosen_requests(
        self, proxied: S3Client, counting_proxy: CountingProxy, bucket: Bucket
    ) -> None:
        faults = {"slow-down": Fault(status=503, body=b"SlowDown"), "cut": Fault(cut_after_bytes=10)}
        for key in ("fine", *faults):
            bucket.put(key, bytes(1000))
        counting_proxy.fault = lambda request: faults.get(request.key)
        assert len(proxied.request("GET", f"/{bucket.name}/fine")) == 1000
        with pytest.raises(S3Error, match="503 SlowDown"):
            proxied.request("GET", f"/{bucket.name}/slow-down")
        with pytest.raises(http.client.IncompleteRead) as cut:
            proxied.request("GET", f"/{bucket.name}/cut")
        assert len(cut.value.partial) == counting_proxy.bytes_sent("cut") == 10

    def test_a_hanging_request_ends_when_the_proxy_closes_and_no_thread_stays(
        self, s3: SeaweedFS, no_leaks: None
    ) -> None:
        arrived = threading.Event()

        def hang(request: Request) -> Fault:
            arrived.set()
            return Fault(hang=True)

        proxy = CountingProxy(s3.endpoint, fault=hang)
        connection = http.client.HTTPConnection(urlsplit(proxy.endpoint).netloc, timeout=20)
        connection.request("GET", "/bucket/key")
        assert arrived.wait(10)
        proxy.close()
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            connection.getresponse()
        connection.close()


class TestProcesses:
    def test_killing_the_tree_takes_orphans_of_the_session_along(self, tmp_path: Path) -> None:
        code = """
            import subprocess, sys, time
            child = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid)"
            subprocess.run([sys.executable, "-c", child])
            time.sleep(60)
        """
        with _python(code, log=tmp_path / "log") as process:
            orphan = int(eventually(lambda: process.output().strip(), 20, "the orphan's pid"))
            assert {process.pid, orphan} <= set(process.tree())
            process.kill_tree()
            assert process.returncode == -signal.SIGKILL
            assert process.tree() == []

    def test_a_process_is_killed_at_its_limit_and_says_so(self, tmp_path: Path) -> None:
        code = "import time; print('hello', flush=True); time.sleep(60)"
        with (
            _python(code, log=tmp_path / "log", limit_seconds=0.5) as process,
            pytest.raises(RuntimeError, match=r"(?s)killed at its limit of 0\.5 s.*hello"),
        ):
            process.check(20)

    def test_a_failure_shows_the_status_and_the_output(self, tmp_path: Path) -> None:
        with (
            _python("print('why it failed'); raise SystemExit(3)", log=tmp_path / "log") as process,
            pytest.raises(RuntimeError, match=r"(?s)status 3.*why it failed"),
        ):
            process.check(20)

    def test_a_process_dies_with_a_starter_that_is_killed(self, tmp_path: Path) -> None:
        code = f"""
            import sys, time
            from pathlib import Path
            from tests.support.processes import Process
            with Process([sys.executable, "-c", "import time; time.sleep(60)"], log=Path({str(tmp_path)!r}, "inner"),
                         limit_seconds=50) as inner:
                print(inner.pid, flush=True)
                time.sleep(60)
        """
        with _python(code, log=tmp_path / "log") as starter:
            inner = int(eventually(lambda: starter.output().strip(), 20, "the inner process"))
            starter.signal(signal.SIGKILL)
            eventually(lambda: not psutil.pid_exists(inner), 10, "its end")

    def test_closing_does_not_wait_for_a_forked_child_that_holds_the_guards_pipe(self, tmp_path: Path) -> None:
        code = f"""
            import os, signal, sys
            from pathlib import Path
            from tests.support.processes import Process
            sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
            with Process(sleep, log=Path({str(tmp_path)!r}, "inner"), limit_seconds=50) as inner:
                child = os.fork()
                if child == 0:
                    signal.pause()
            os.kill(child, signal.SIGKILL)
            print("closed")
        """
        with _python(code, log=tmp_path / "log", limit_seconds=60) as starter:
            assert starter.check(15).endswith("closed\n")

    def test_waiting_returns_the_answer_or_says_what_was_awaited(self) -> None:
        answers = iter([0, 0, 7])
        assert eventually(lambda: next(answers), 5, "seven") == 7
        with pytest.raises(TimeoutError, match=r"waited 0\.05 s for a miracle"):
            eventually(lambda: False, 0.05, "a miracle")


class TestEnvironmentOfTests:
    def test_every_directory_of_a_test_is_its_own_and_short(self, home: Path) -> None:
        runtime = Path(os.environ["XDG_RUNTIME_DIR"])
        assert runtime.parent == home
        assert runtime.stat().st_mode & 0o777 == 0o700
        assert len(bytes(runtime)) <= 60
        assert [name for name in os.environ if name.startswith("FOREBAY_")] == []

    def test_a_background_process_of_a_test_ends_with_the_test(self, tmp_path: Path) -> None:
        test = tmp_path / "test_leaves_a_daemon.py"
        pid_file = tmp_path / "pid"
        test.write_text(
            textwrap.dedent(
                f"""
                import subprocess, sys
                from pathlib import Path
                def test_leaves_a_daemon():
                    # -3 is subprocess.DEVNULL
                    daemon = "['sleep', '60'], start_new_session=True, stdout=-3, stderr=-3"
                    start = f"import subprocess; print(subprocess.Popen({{daemon}}).pid)"
                    pid = subprocess.run([sys.executable, "-c", start], capture_output=True, check=True).stdout
                    Path({str(pid_file)!r}).write_bytes(pid)
                """
            )
        )
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.conftest",
            f"--rootdir={tmp_path}",
            "-c",
            os.devnull,
            str(test),
        ]
        dropped = (HOME_VARIABLE, "PYTEST_ADDOPTS")
        env = {name: value for name, value in os.environ.items() if name not in dropped}
        with Process(argv, log=tmp_path / "log", limit_seconds=60, env=env, cwd=REPOSITORY) as process:
            process.check(60)
        eventually(lambda: not psutil.pid_exists(int(pid_file.read_text())), 10, "the daemon's end")

    def test_the_leak_check_sees_threads_descriptors_and_shared_memory(self, tmp_path: Path) -> None:
        before = take_stock()
        release = threading.Event()
        thread = threading.Thread(target=release.wait, name="left-over")
        thread.start()
        name = Path(f"/dev/shm/forebay-test-{os.getpid()}")
        name.touch()
        try:
            with (tmp_path / "open").open("w"):
                found = take_stock().beyond(before)
        finally:
            release.set()
            thread.join()
            name.unlink()
        assert len(found) == 3
        assert f"/dev/shm/{name.name}" in found
        assert "thread left-over" in found
        assert any(entry.startswith("descriptor") and entry.endswith("/open") for entry in found)
        assert take_stock().beyond(before) == []


class TestData:
    def test_parquet_shards_hold_the_rows_that_row_says(self, tmp_path: Path) -> None:
        paths = data.write_parquet(tmp_path / "set", shards=3, rows=25, row_group_rows=10, first_id=5)
        assert [path.name for path in paths] == sorted(path.name for path in (tmp_path / "set").iterdir())
        assert pq.ParquetFile(paths[0]).num_row_groups == 3
        rows = [entry for path in paths for entry in pq.read_table(path).to_pylist()]
        assert rows == [data.row(sample_id) for sample_id in range(5, 80)]

    @pytest.mark.parametrize("name", ["flat.bin", "flat.npy"])
    def test_token_files_hold_the_values_of_tokens(self, tmp_path: Path, name: str) -> None:
        values = data.write_tokens(tmp_path / name, samples=7, sequence_length=16, dtype=np.uint16)
        path = tmp_path / name
        stored = np.load(path) if name.endswith("npy") else np.fromfile(path, dtype=np.uint16)
        assert stored.dtype == np.uint16
        assert np.array_equal(stored.reshape(7, 16), values)
