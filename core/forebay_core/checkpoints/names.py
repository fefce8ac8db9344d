"""Names below the root of a job's checkpoints, and back (pure).

::

    <root>/generations/g000007.json                       claimed by each start of the job, by put-if-absent
           attempts/<attempt>/ranks/00000.json            a rank's manifest: what it names is there and was verified
                              data/00000.json             the rank's position, sample digest and random states
                              objects.pt                  schedulers and the like, written by rank 0
                              __0_0.distcp, .metadata     plain files of torch's distributed checkpoints
           commits/<attempt>.json                         the one decision on the attempt
           ledger/g000007/000012.json                     what happened to the generation, in numbered parts
           clock/now                                      there for a moment, to read the store's clock

An attempt is named `g000007-s000001000-1a2b3c4d5e6f`: names sort by generation, then step. The newest is the highest.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Self

from forebay_core.errors import ConfigurationError

METADATA = ".metadata"
OBJECTS = "objects.pt"
ATTEMPTS = "attempts"
COMMITS = "commits"
GENERATIONS = "generations"
LEDGER = "ledger"
CLOCK = "clock"
#: Steps and generations of more digits do not sort any more.
MOST_STEP = 10**9 - 1
MOST_GENERATION = 10**6 - 1
MOST_RANKS = 10**5

_ATTEMPT = re.compile(r"g(\d{6})-s(\d{9})-([0-9a-f]{12})", re.ASCII)
_FILE = re.compile(r"(?:\.metadata|objects\.pt|__\d{1,6}_\d{1,6}\.distcp|(?:ranks|data)/\d{5}\.json)", re.ASCII)
_NUMBERED = re.compile(r"(?:.*/)?g?(\d{6})\.json", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Attempt:
    """One try at saving one step; their order is that of age. `nonce`: 12 hexadecimal digits, the same on all ranks."""

    generation: int
    step: int
    nonce: str

    def __post_init__(self) -> None:
        if not 0 <= self.generation <= MOST_GENERATION or not 0 <= self.step <= MOST_STEP:
            raise ConfigurationError(
                f"generation {self.generation}, step {self.step}: a checkpoint is of a generation from 0 to "
                f"{MOST_GENERATION} and a step from 0 to {MOST_STEP}"
            )
        if not re.fullmatch(r"[0-9a-f]{12}", self.nonce):
            raise ConfigurationError(f"nonce {self.nonce!r}: give 12 hexadecimal digits")

    @classmethod
    def draw(cls, generation: int, step: int) -> Self:
        """A new attempt, unlike any other."""
        return cls(generation, step, secrets.token_hex(6))

    @property
    def name(self) -> str:
        return f"g{self.generation:06d}-s{self.step:09d}-{self.nonce}"

    @property
    def directory(self) -> str:
        """Where its objects lie, relative to the root."""
        return f"{ATTEMPTS}/{self.name}"

    @property
    def decision(self) -> str:
        """The key of its decision, relative to the root."""
        return f"{COMMITS}/{self.name}.json"

    def key(self, file: str) -> str:
        """The key of one of its files, relative to the root. `ConfigurationError` for a name that no file has."""
        return f"{self.directory}/{checked_file(file)}"


def parse_attempt(name: str) -> Attempt | None:
    """The attempt of a name (also of `commits/<name>.json` or `attempts/<name>/...`); None where it is not one."""
    for part in name.removesuffix(".json").split("/"):
        if found := _ATTEMPT.fullmatch(part):
            return Attempt(int(found[1]), int(found[2]), found[3])
    return None


def parse_file(key: str) -> tuple[Attempt, str] | None:
    """The attempt and the file of an object's key; None for a key that is not exactly that: it is another's object."""
    top, _, rest = key.partition("/")
    name, _, file = rest.partition("/")
    attempt = parse_attempt(name)
    if top != ATTEMPTS or attempt is None or attempt.name != name or not is_file(file):
        return None
    return attempt, file


def parse_decision_key(key: str) -> Attempt | None:
    """The attempt on which the object of that key decides; None for a key that is not exactly a decision's."""
    attempt = parse_attempt(key)
    return attempt if attempt is not None and attempt.decision == key else None


def parse_rank(file: str) -> int | None:
    """The rank whose manifest a file of an attempt is; None where it is another file."""
    return int(file[6:11]) if file.startswith("ranks/") and is_file(file) else None


def rank_manifest(rank: int) -> str:
    """The file of a rank's manifest, relative to the attempt."""
    return f"ranks/{rank:05d}.json"


def rank_data(rank: int) -> str:
    """The file of a rank's position and random states, relative to the attempt."""
    return f"data/{rank:05d}.json"


def generation_key(generation: int) -> str:
    return f"{GENERATIONS}/g{generation:06d}.json"


def ledger_key(generation: int, part: int) -> str:
    return f"{LEDGER}/g{generation:06d}/{part:06d}.json"


def parse_number(key: str) -> int | None:
    """The number of a generation's or a ledger part's key; None where it is neither."""
    found = _NUMBERED.fullmatch(key)
    return int(found[1]) if found else None


def checked_file(name: str) -> str:
    """The name, if a file of an attempt may have it: nothing that leads elsewhere does."""
    if not _FILE.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no file of a checkpoint")
    return name


def is_file(name: str) -> bool:
    """Whether a file of an attempt may have that name."""
    return _FILE.fullmatch(name) is not None
