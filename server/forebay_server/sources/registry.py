"""Which store a URL means. One per (scheme, bucket), opened when it is first named and kept for the daemon's life.

Any thread may ask for a target.
"""

import random
import time
from collections.abc import Iterator, Mapping

from forebay_core.locations import Location, parse
from forebay_server.sources.file import FileStore
from forebay_server.sources.gate import Gate
from forebay_server.sources.pacing import Pace, PaceRules
from forebay_server.sources.permits import Permits
from forebay_server.sources.remote import ConnectionOptions, RemoteCounters, RemoteStore, Target
from forebay_server.sources.s3 import S3


class Stores:
    """All stores of a daemon, each opened when it is first named.

    `environment` holds credentials, endpoint and region as obstore reads them (`AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`,
    `AWS_ACCESS_KEY_ID`, …). They stay in here.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        counters: RemoteCounters,
        options: ConnectionOptions | None = None,
        *,
        permits: Permits | None = None,
        pace: PaceRules | None = None,
    ) -> None:
        self.counters = counters
        #: What may be read at all; everything where it is not said.
        self.permits = permits or Permits()
        self._pace = pace or PaceRules()
        self._environment = dict(environment)
        self._options = options or ConnectionOptions()
        self._opened: dict[tuple[str, str], RemoteStore] = {}
        self._roots: dict[str, tuple[RemoteStore, str, str]] = {}

    def open(self, location: Location) -> RemoteStore:
        """The store that holds a location. Raises `UnknownScheme`, or `ConfigurationError` for unusable settings."""
        place = (location.scheme, location.bucket)
        if place not in self._opened:
            store = self._opened[place] = self._make(location)
            store.gate = Gate(Pace(self._pace, random.random), self.counters, time.monotonic)
        return self._opened[place]

    def __iter__(self) -> Iterator[RemoteStore]:
        """The stores that were opened so far."""
        return iter(list(self._opened.values()))

    def target(self, root: str, key: str = "") -> Target:
        """The object `key` below a dataset's root, or what lies at the root itself.

        Raises `AccessDenied` for an object that the daemon may not read.
        """
        if root not in self._roots:
            location = parse(root)
            self._roots[root] = self.open(location), location.path.rstrip("/"), location.url.removesuffix("/")
        store, directory, url = self._roots[root]
        if not key:
            return Target(store, directory, root)
        whole = f"{directory}/{key}" if directory or store.scheme == "file" else key
        if store.scheme != "file":  # which looks where a path really leads, when it has opened it
            self.permits.check(Location(store.scheme, store.bucket, whole))
        return Target(store, whole, f"{url}/{key}")

    def _make(self, location: Location) -> RemoteStore:
        if location.scheme == "file":
            return FileStore(self.counters, self.permits)
        return S3(location.bucket, self._environment, self.counters, self._options)
