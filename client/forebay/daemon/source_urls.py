"""URLs and paths of data as the daemon is asked for them: it has another working directory than who gives them."""

import os

from forebay_core.errors import ConfigurationError


def absolute(url: str) -> str:
    """The URL as it is; a path from the root, `~` replaced, its trailing slash kept.

    Raises `ConfigurationError` for an empty one, which would be the working directory.
    """
    if not url:
        raise ConfigurationError("SOURCE '' names no data: is a variable unset? give a URL or a path")
    return url if "://" in url else os.path.join(os.getcwd(), os.path.expanduser(url))  # noqa: PTH109, PTH111, PTH118 - keeps a trailing slash
