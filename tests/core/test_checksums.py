"""CRC-32C over any buffer, in any number of steps."""

from collections.abc import Callable

import obstore
import pytest
from obstore.store import MemoryStore

from forebay_core.checksums import crc32c
from forebay_core.formats.base import Buffer

CONTENT = bytes(range(256)) * 300


def received(content: bytes) -> Buffer:
    """As a store hands it over: memory that is not Python's."""
    store = MemoryStore()
    obstore.put(store, "a", content)
    taken: Buffer = obstore.get(store, "a").bytes()  # type: ignore[assignment]
    return taken


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, received])
def test_all_kinds_of_buffers_have_the_checksum_of_their_bytes(kind: Callable[[bytes], Buffer]) -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value in catalogues of checksums
    assert crc32c(kind(CONTENT)) == crc32c(CONTENT)
    assert crc32c(kind(CONTENT[1000:]), crc32c(kind(CONTENT[:1000]))) == crc32c(CONTENT)
    assert crc32c(kind(b""), 7) == 7
