"""Scripts of faults for the proxy: which requests, in which order, how often.

A script is a proxy's `fault` hook. The first rule that fits a request and has not struck as often as it may decides;
the proxy's threads may ask at once. `Rule.struck` tells a test that what it meant to happen has happened.
"""

import re
import threading
from dataclasses import dataclass

from tests.support.proxy import Fault, Request


@dataclass
class Rule:
    """A fault for the requests that fit: the first `skip` of them pass, the next `times` (None: all others) fail."""

    fault: Fault
    method: str = ""
    """Empty: any."""
    key: str = ""
    """A regular expression that is found in the object's key; empty: any request, also those to the bucket."""
    range: str = ""
    """A regular expression that is found in the Range header."""
    skip: int = 0
    times: int | None = None
    seen: int = 0
    struck: int = 0

    def fits(self, request: Request) -> bool:
        return (
            self.method in ("", request.method)
            and (not self.key or bool(request.key and re.search(self.key, request.key)))
            and (not self.range or bool(request.range and re.search(self.range, request.range)))
        )

    def strikes(self) -> bool:
        """Whether it is the turn of a request that fits."""
        self.seen += 1
        if self.seen <= self.skip or (self.times is not None and self.struck >= self.times):
            return False
        self.struck += 1
        return True


class Script:
    """Rules in the order in which they are asked."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        with self._lock:
            return next((rule.fault for rule in self.rules if rule.fits(request) and rule.strikes()), None)

    @property
    def struck(self) -> int:
        """How many requests have failed by this script."""
        with self._lock:
            return sum(rule.struck for rule in self.rules)
