"""Which store a URL means. One per (scheme, bucket), opened when it is first named and kept for the daemon's life.

Any thread may ask for a target.
"""

from collections.abc import Mapping

from forebay_core.locations import Location, parse
from forebay_server.sources.file import FileStore
from forebay_server.sources.remote import ConnectionOptions, RemoteCounters, RemoteStore, Target
from forebay_server.sources.s3 import S3


class Stores:
    """All stores of a daemon, each opened when it is first named.

    `environment` holds credentials, endpoint and region as obstore reads them (`AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`,
    `AWS_ACCESS_KEY_ID`, …). They stay in here.
    """

    def __init__(
        self, environment: Mapping[str, str], counters: RemoteCounters, options: ConnectionOptions | None = None
    ) -> None:
        self.counters = counters
        self._environment = dict(environment)
        self._options = options or ConnectionOptions()
        self._opened: dict[tuple[str, str], RemoteStore] = {}
        self._roots: dict[str, tuple[RemoteStore, str, str]] = {}

    def open(self, location: Location) -> RemoteStore:
        """The store that holds a location. Raises `UnknownScheme`, or `ConfigurationError` for unusable settings."""
        place = (location.scheme, location.bucket)
        if place not in self._opened:
            self._opened[place] = self._make(location)
        return self._opened[place]

    def target(self, root: str, key: str = "") -> Target:
        """The object `key` below a dataset's root, or what lies at the root itself."""
        if root not in self._roots:
            location = parse(root)
            self._roots[root] = self.open(location), location.path.rstrip("/"), location.url.removesuffix("/")
        store, directory, url = self._roots[root]
        if not key:
            return Target(store, directory, root)
        return Target(store, f"{directory}/{key}" if directory or store.scheme == "file" else key, f"{url}/{key}")

    def _make(self, location: Location) -> RemoteStore:
        if location.scheme == "file":
            return FileStore(self.counters)
        return S3(location.bucket, self._environment, self.counters, self._options)
