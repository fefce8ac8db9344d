"""The source and the format of the data as they stand on a command line (pure)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.daemon.source_urls import absolute
from forebay_core.errors import ConfigurationError
from forebay_core.formats import Format, Tokens, from_spec


@dataclass(frozen=True)
class FormatOptions:
    """What is said of the format; None where nothing is.

    name: a format's name, or a JSON object of its name and options, as `Format.spec` gives it.
    """

    name: str | None = None
    sequence_length: int | None = None
    dtype: str | None = None
    piece_bytes: int | None = None

    def format(self) -> Format | None:
        """The format; None where nothing is said, and the daemon finds it. Raises `ConfigurationError`."""
        fields = (self.sequence_length, self.dtype, self.piece_bytes)
        given = {
            name: value
            for name, value in zip(("sequence_length", "dtype", "piece_bytes"), fields, strict=True)
            if value is not None
        }
        spec = self._named()
        if "name" not in spec and not given:
            return None
        if "name" not in spec and given.keys() <= {"piece_bytes"}:
            raise ConfigurationError("--piece-bytes belongs to a format: give --format beside it")
        spec = {"name": Tokens.name, **spec, **given}
        if spec["name"] == Tokens.name and "sequence_length" not in spec:
            raise ConfigurationError("token files do not say how long a sample is: give --sequence-length")
        return from_spec(spec)

    def _named(self) -> dict[str, Any]:
        if self.name is None:
            return {}
        if not self.name.lstrip().startswith("{"):
            return {"name": self.name}
        try:
            spec: dict[str, Any] = json.loads(self.name)
        except ValueError as error:
            raise ConfigurationError(f"--format {self.name!r} is neither a name nor a JSON object ({error})") from error
        if "name" not in spec:
            raise ConfigurationError(f'--format {self.name!r} names no format: give {{"name": …}}')
        return spec


def absolute_urls(sources: Sequence[str]) -> list[str]:
    """The sources as the daemon is asked for them, which has another working directory."""
    return [absolute(source) for source in sources]
