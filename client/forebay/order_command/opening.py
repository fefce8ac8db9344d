"""The manifest of data that are named on a command line, as the daemon lists them."""

import json
from collections.abc import Sequence

from forebay.daemon.client import DaemonClient
from forebay.order_command.format_options import FormatOptions, absolute_urls
from forebay_core.manifest import Manifest


def open_manifest(sources: Sequence[str], options: FormatOptions, client: DaemonClient) -> Manifest:
    """Asks the daemon, which reads no data. Raises what `DaemonClient.open_dataset` does, and `ConfigurationError`."""
    format = options.format()
    spec = "" if format is None else json.dumps(format.spec(), sort_keys=True)
    opened = client.open_dataset(absolute_urls(sources), spec)
    return Manifest.open(opened.manifest_path, inode=opened.inode, size=opened.size_bytes)
