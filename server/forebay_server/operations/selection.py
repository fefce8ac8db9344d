"""Which of what is cached a URL means: the object of just this name, and all below it as a directory. Pure.

URLs are compared as they are spelt, by whole parts: `s3://b/train` holds `s3://b/train/x` and not `s3://b/training`.
A pattern means nothing here: `*` is a character like any other, since what is cached has plain names.
"""

from dataclasses import dataclass
from enum import Enum

from forebay_core.locations import parse


class Reach(Enum):
    """How much of a dataset is selected: its objects lie at or below its root."""

    ALL = "all"
    SOME = "some"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Selection:
    """What lies at or below `url`; an empty one is everything. Made by `parse`."""

    url: str

    @classmethod
    def parse(cls, text: str) -> "Selection":
        """Reads a URL or an absolute path; empty selects everything. Raises `ConfigurationError`, `UnknownScheme`."""
        return cls(_spelt(text) if text else "")

    def holds(self, url: str) -> bool:
        """Whether an object is selected."""
        return not self.url or _is_at_or_below(_spelt(url), self.url)

    def reach(self, root: str) -> Reach:
        """How much of the dataset with this root is selected; an unknown root ("") may hold anything."""
        if not self.url:
            return Reach.ALL
        if not root:
            return Reach.SOME
        spelt = _spelt(root)
        if _is_at_or_below(spelt, self.url):
            return Reach.ALL
        return Reach.SOME if _is_at_or_below(self.url, spelt) else Reach.NONE


def _spelt(url: str) -> str:
    return parse(url).url.rstrip("/")


def _is_at_or_below(url: str, prefix: str) -> bool:
    return url == prefix or url.startswith(f"{prefix}/")
