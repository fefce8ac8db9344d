"""Names of objects, paths and labels as pages and metrics may show them. Pure."""

from functools import lru_cache

from forebay_core.locations import redacted

_LONGEST = 1000


def plain(text: str) -> str:
    """The text without what is no Unicode (the odd bytes of a file's name) and not without end."""
    return text.encode("utf-8", "replace").decode()[:_LONGEST]


@lru_cache(1024)
def shown_url(url: str) -> str:
    """A URL without secrets. Pages ask for the same ones again and again."""
    return plain(redacted(url))
