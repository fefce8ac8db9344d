"""What a user chooses of sequence packing, and the tokenizer that the daemon then runs.

A tokenizer crosses processes as the path of a `tokenizer.json` with the digest of its content. The trainer reads the
file when the option is made; the daemon reads it again, and refuses one of another digest. The digest is part of what a
dataset is, the path is not: a copy elsewhere gives the same sequences.

Options are checked where they are made, on both sides: a daemon makes them from what a client sends, and then reads no
file but a regular one of bounded size.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from forebay_core.errors import ConfigurationError, one_line
from forebay_core.formats.options import positive

BYTES: Literal["bytes"] = "bytes"
_LONGEST_SEQUENCE = 1 << 24
_LARGEST_TOKENIZER_BYTES = 256 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_DTYPES = ("int32", "int64")
_REMAINDERS = ("drop", "pad")
#: Tokenizers that stay loaded: they take up to some hundred MiB each.
_LOADED = 2


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A `tokenizer.json` by its absolute path, and the digest of its content: "sha256:" and 64 digits."""

    path: str
    digest: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path.startswith("/") or "\0" in self.path:
            raise ConfigurationError(f"the tokenizer's path {self.path!r} is not absolute")
        if not isinstance(self.digest, str) or not _DIGEST.fullmatch(self.digest):
            raise ConfigurationError(f"the digest {self.digest!r} of the tokenizer {self.path!r} is not one of SHA-256")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "TokenizerFile":
        """The file as it is now. Raises `ConfigurationError` where it cannot be read."""
        whole = os.path.abspath(os.path.expanduser(os.fspath(path)))  # noqa: PTH100, PTH111 - links keep their names
        return cls(whole, _digest(_content(whole)))

    def load(self) -> Any:
        """The `tokenizers.Tokenizer`, for any number of threads.

        Raises `ConfigurationError` where the file cannot be read, is another than the trainer's, or is no tokenizer,
        and where the library is missing.
        """
        return _loaded(self)


@dataclass(frozen=True)
class Packing:
    """Documents end to end, cut into sequences of equal length: packed per piece, when the piece is filled.

    The rows of the dataset are then sequences: one column, "tokens", [sequence_length]. The documents of a piece (a run
    of a file's rows) are joined in their order, `separator` after each of them. Documents that are null or have no
    token are left out. What is left at the end of a piece and fills no sequence is dropped, or padded; `counts` of the
    dataset say how many tokens that is.

    Args:
        sequence_length: tokens in a sequence.
        column: holds the documents: lists of token ids, or text where there is a tokenizer.
        tokenizer: None for token ids; "bytes" for UTF-8 bytes as ids; or the path of a `tokenizer.json` of the
            Hugging Face `tokenizers` library, which the daemon must be able to read too. Truncation and padding that
            the file sets are not applied.
        separator: the id after each document; None for nothing.
        remainder: "drop", or "pad" with `pad`.
        pad: the id that fills a piece's last sequence.
        special_tokens: whether the tokenizer's own template adds its special tokens to each document.
        dtype: of the tokens, "int32" or "int64".

    Raises `ConfigurationError` for options that cannot work, and for a tokenizer that cannot be read.
    """

    sequence_length: int
    column: str
    tokenizer: "str | os.PathLike[str] | TokenizerFile | None" = None
    separator: int | None = None
    remainder: Literal["drop", "pad"] = "drop"
    pad: int = 0
    special_tokens: bool = False
    dtype: Literal["int32", "int64"] = "int32"

    def __post_init__(self) -> None:
        positive("Packing(sequence_length=…)", self.sequence_length)
        if self.sequence_length > _LONGEST_SEQUENCE:
            raise ConfigurationError(
                f"Packing(sequence_length={self.sequence_length}) must be {_LONGEST_SEQUENCE} at most"
            )
        if not isinstance(self.column, str) or not self.column:
            raise ConfigurationError(f"Packing(column={self.column!r}) must be the name of a column")
        _one_of("remainder", self.remainder, _REMAINDERS)
        _one_of("dtype", self.dtype, _DTYPES)
        self._check_id("pad", self.pad)
        if self.separator is not None:
            self._check_id("separator", self.separator)
        self._check_tokenizer()

    @classmethod
    def from_spec(cls, spec: object) -> "Packing":
        """Of what `spec` gives; reads no file."""
        if not isinstance(spec, Mapping):
            raise ConfigurationError(f"packing={spec!r} is not a JSON object")
        options = dict(spec)
        tokenizer = options.get("tokenizer")
        try:
            if isinstance(tokenizer, Mapping):
                options["tokenizer"] = TokenizerFile(**tokenizer)
            elif tokenizer not in (None, BYTES):
                raise ConfigurationError(f"a packing's tokenizer must come with its digest, not as {tokenizer!r}")
            return cls(**options)
        except TypeError as error:
            raise ConfigurationError(f"Packing does not take these options ({error})") from error

    def spec(self) -> dict[str, Any]:
        """All options, as JSON."""
        file = self.file
        return self._spec({"path": file.path, "digest": file.digest} if file else self.tokenizer)

    def identity(self) -> dict[str, Any]:
        """What the sequences depend on: all but the place of the tokenizer."""
        return self._spec(self.file.digest if self.file else self.tokenizer)

    @property
    def file(self) -> TokenizerFile | None:
        """The tokenizer, where it is a file."""
        return self.tokenizer if isinstance(self.tokenizer, TokenizerFile) else None

    @property
    def token(self) -> np.dtype[Any]:
        """The type of a token."""
        return np.dtype(self.dtype)

    def _spec(self, tokenizer: object) -> dict[str, Any]:
        names = ("sequence_length", "column", "separator", "remainder", "pad", "special_tokens", "dtype")
        return {"tokenizer": tokenizer, **{name: getattr(self, name) for name in names}}

    def _check_id(self, name: str, value: object) -> None:
        info = np.iinfo(self.dtype)
        if isinstance(value, bool) or not isinstance(value, int) or not info.min <= value <= info.max:
            raise ConfigurationError(f"Packing({name}={value!r}) must be a token id that {self.dtype} can hold")

    def _check_tokenizer(self) -> None:
        tokenizer: object = self.tokenizer
        if isinstance(tokenizer, str | os.PathLike) and tokenizer != BYTES:
            object.__setattr__(self, "tokenizer", TokenizerFile.read(tokenizer))
        elif tokenizer not in (None, BYTES) and not isinstance(tokenizer, TokenizerFile):
            raise ConfigurationError(
                f"Packing(tokenizer={tokenizer!r}) must be the path of a tokenizer.json, 'bytes', or None: the daemon "
                f"runs it, so it is named by its file (Tokenizer.save(path))"
            )
        if not isinstance(self.special_tokens, bool) or (self.special_tokens and self.file is None):
            raise ConfigurationError("Packing(special_tokens=True) needs a tokenizer of which they are")


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"Packing({name}={value!r}) must be one of {', '.join(map(repr, known))}")


def _content(path: str) -> bytes:
    """The bytes of a regular file of bounded size; nothing else is opened for longer than to see what it is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "no regular file")
            size = found.st_size
            content = file.read(_LARGEST_TOKENIZER_BYTES + 1) if size <= _LARGEST_TOKENIZER_BYTES else b""
    except OSError as error:
        who = f"user {os.getuid()}"
        raise ConfigurationError(
            f"the tokenizer {path!r} cannot be read here by {who} ({error.strerror}): "
            f"put it where the trainer and the daemon of every node can read it"
        ) from error
    if max(size, len(content)) > _LARGEST_TOKENIZER_BYTES:
        raise ConfigurationError(f"the tokenizer {path!r} is larger than {_LARGEST_TOKENIZER_BYTES >> 20} MiB")
    return content


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@lru_cache(maxsize=_LOADED)
def _loaded(file: TokenizerFile) -> Any:
    content = _content(file.path)
    if (found := _digest(content)) != file.digest:
        raise ConfigurationError(
            f"the tokenizer {file.path!r} has the digest {found} for the daemon, and had {file.digest} for the "
            f"trainer: give every node the same file, and start anew where it was changed"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigurationError(
            f"the daemon needs the tokenizers library for {file.path!r}: pip install 'forebay[tokenizers]'"
        ) from error
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises nothing more exact
        raise ConfigurationError(f"{file.path!r} is no tokenizer.json that can be read ({one_line(error)})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
