"""The sample digest: what was handed out, as one number that adds over ranks, restarts and world sizes (pure).

Each sample that is handed out adds `mix(epoch, position, source, sample id)`, 128 bits, modulo 2**128. So the digests
of all ranks, added, say which sample was at every position of what they have read together, in whatever order and by
whomever; a sample that is missing, doubled or misplaced changes the sum. `expected` says what the order engine has
there. A pad is a repetition beside the order and adds nothing. A sample that `on_error="skip"` left out counts at its
position, as the position itself counts it, and is told in `skipped`.

The mix is a permutation of 128 bits (a Feistel network of four rounds), so no two samples of one source and epoch are
alike. It guards against mistakes, not against forgery. Changing it changes every digest: it takes another `ALGORITHM`.

The planner's thread sums the steps that it plans together; the trainer's thread adds a step when it is handed out.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from forebay.order import BucketedSequence, Lists, MixedSequence, Order, RankPlan, Split
from forebay.order.lanes import Int64
from forebay_core.errors import ConfigurationError, StateError

ALGORITHM = "samples-1"
UInt64 = npt.NDArray[np.uint64]

_ROUNDS = 4
_MODULUS = 1 << 128
_AT_ONCE = 1 << 18
#: The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


@dataclass(frozen=True, slots=True)
class SampleDigest:
    """Some samples, whatever their order.

    value: the sum of their mixes, in [0, 2**128). samples: how many they are. skipped: how often one of them, or a pad,
    could not be read, so that another of its batch stood in its place.
    """

    value: int = 0
    samples: int = 0
    skipped: int = 0

    def __add__(self, other: Self) -> Self:
        """Of both together."""
        value = (self.value + other.value) % _MODULUS
        return type(self)(value, self.samples + other.samples, self.skipped + other.skipped)

    def __reduce__(self) -> tuple[type[Self], tuple[int, int, int]]:
        """One crosses from a worker process with each batch; this is ten times as fast as a dataclass's own way."""
        return type(self), (self.value, self.samples, self.skipped)

    def __str__(self) -> str:
        return f"{self.value:032x} of {self.samples} samples"

    def encode(self) -> dict[str, Any]:
        """As JSON values: the number in 32 hexadecimal digits."""
        said = {"algorithm": ALGORITHM, "value": f"{self.value:032x}", "samples": self.samples}
        return said | ({"skipped": self.skipped} if self.skipped else {})

    @classmethod
    def decode(cls, encoded: Mapping[str, Any]) -> Self:
        """Reads what `encode` gave; `StateError` for anything else."""
        try:
            if encoded["algorithm"] != ALGORITHM:
                raise StateError(
                    f"the sample digest is {encoded['algorithm']!r}, this forebay reckons {ALGORITHM!r}: compare it "
                    f"with the forebay that wrote it, or a newer one"
                )
            value, samples, skipped = str(encoded["value"]), encoded["samples"], encoded.get("skipped", 0)
            if len(value) != 32 or any(type(number) is not int or number < 0 for number in (samples, skipped)):
                raise ValueError("not 32 digits and a count")
            return cls(int(value, 16), samples, skipped)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"not a sample digest ({type(error).__name__}: {error})") from error


NOTHING = SampleDigest()


def mix(epoch: int, position: Int64, sample_id: Int64, source: Int64 | None = None) -> UInt64:
    """128 bits for each sample: uint64 [n, 2], the low word first.

    epoch, position: where it was handed out. source: the number of its dataset in a mixture, None for one dataset.
    """
    low, high = position.astype(np.uint64), sample_id.astype(np.uint64)
    for key in _keys(epoch, source):
        low, high = high, low ^ _scrambled(high + key)
    return np.stack((low, high), axis=1)


def digests_of(plan: RankPlan, epoch: int) -> list[SampleDigest]:
    """What each of the plan's steps hands out."""
    limbs = np.zeros((len(plan.position) + 1, 5), dtype=np.uint64)
    limbs[1:, :4] = _limbs(mix(epoch, plan.position, plan.sample_id, plan.source))
    limbs[1:, 4] = 1
    limbs[1:][plan.is_pad] = 0
    sums = np.diff(np.cumsum(limbs, axis=0)[plan.offsets], axis=0).tolist()
    return [SampleDigest(_whole(*value), samples) for *value, samples in sums]


Read = Callable[[int, int, int], tuple[Int64, Int64 | None]]
"""The sample ids, and in a mixture the sources, at the positions [start, stop) of an epoch: (epoch, start, stop)."""


def reading(order: Order | MixedSequence | BucketedSequence | Lists) -> Read:
    """What an order engine has at its positions."""
    if isinstance(order, Order):
        return lambda epoch, start, stop: (order.epoch(epoch).sample_ids(start, stop), None)
    if isinstance(order, Lists):
        return lambda epoch, start, stop: (_listed(order, epoch, start, stop), None)

    def read(epoch: int, start: int, stop: int) -> tuple[Int64, Int64 | None]:
        found = order.read(epoch, start, stop)
        return found.sample_id, found.source

    return read


def expected_range(read: Read, epoch: int, start: int, stop: int) -> SampleDigest:
    """The digest of what lies at the positions [start, stop) of an epoch. Costs the samples, in bounded memory."""
    value = 0
    for begin in range(start, stop, _AT_ONCE):
        end = min(begin + _AT_ONCE, stop)
        sample_id, source = read(epoch, begin, end)
        words = mix(epoch, np.arange(begin, end), sample_id, source)
        value += _whole(*_limbs(words).sum(axis=0, dtype=np.uint64).tolist())
    return SampleDigest(value % _MODULUS, stop - start)


def expected(
    read: Read, samples: int, begin: tuple[int, int], end: tuple[int, int], *, split: Split | None = None
) -> SampleDigest:
    """What all ranks together hand out between two states, each (epoch, position), `begin` not after `end`.

    samples: of an epoch. split: how the steps between were cut; only `tail="drop"` needs it, as what is left at the end
    of an epoch is not handed out then. Raises `ConfigurationError` for places that are none.
    """
    if not (begin[0] >= 0 and begin <= end and all(0 <= place[1] <= samples for place in (begin, end))):
        raise ConfigurationError(f"from {begin} to {end} is no stretch of epochs of {samples} samples")
    total = NOTHING
    for epoch in range(begin[0], end[0] + 1):
        start = begin[1] if epoch == begin[0] else 0
        stop = end[1] if epoch == end[0] else _end_of_epoch(samples, start, split)
        total += expected_range(read, epoch, start, stop)
    return total


def _end_of_epoch(samples: int, start: int, split: Split | None) -> int:
    if split is None or split.tail != "drop":
        return samples
    return start + split.full_steps(samples, start) * split.global_batch


def _listed(lists: Lists, epoch: int, start: int, stop: int) -> Int64:
    listing = lists.of(epoch)
    if listing.offsets is not None:
        return listing.indices[start:stop]
    return listing.indices[listing.order.epoch(epoch).locate(start, stop).row]


def _keys(epoch: int, source: Int64 | None) -> tuple[UInt64 | np.uint64, ...]:
    """For each round a key, or one for each sample."""
    if source is None:
        return _key(epoch, 0)
    numbers, index = np.unique(source, return_inverse=True)
    keys = [_key(epoch, number) for number in numbers.tolist()]
    return tuple(np.array(of_round, dtype=np.uint64)[index] for of_round in zip(*keys, strict=True))


@lru_cache(maxsize=1024)
def _key(epoch: int, source: int) -> tuple[np.uint64, ...]:
    digest = hashlib.sha256(f"forebay {ALGORITHM} {epoch} {source}".encode()).digest()
    return tuple(np.frombuffer(digest, dtype="<u8").astype(np.uint64)[:_ROUNDS])


def _scrambled(words: UInt64) -> UInt64:
    for factor, shift in zip(_FACTORS, _SHIFTS, strict=False):
        words ^= words >> shift
        words *= factor
    words ^= words >> _SHIFTS[-1]
    return words


def _limbs(words: UInt64) -> npt.NDArray[np.uint32]:
    """The words in four parts of 32 bits each, the lowest first, of which many add up without a carry."""
    return words.astype("<u8", copy=False).view("<u4")


def _whole(lowest: int, low: int, high: int, highest: int) -> int:
    return (lowest + (low << 32) + (high << 64) + (highest << 96)) % _MODULUS
