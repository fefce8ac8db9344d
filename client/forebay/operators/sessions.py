"""`forebay sessions`: who reads through the daemon, and who waits."""

import dataclasses

from forebay.command_options import AddressOption, JsonOption
from forebay.console import print_json, print_sessions
from forebay.daemon.client import DaemonClient


def sessions(address: AddressOption = None, as_json: JsonOption = False) -> int:
    """Show the sessions of loaders: one for each rank, with its position, rate, leases and waits."""
    found = DaemonClient(address, reconnect_seconds=0.0, start=False).status().sessions
    if as_json:
        print_json({"sessions": [dataclasses.asdict(session) for session in found]})
    else:
        print_sessions(found)
    return 0
