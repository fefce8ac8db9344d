"""CRC-32C of whatever holds bytes, without a copy."""

import google_crc32c
import numpy as np


def crc32c(content: bytes | bytearray | memoryview, before: int = 0) -> int:
    """Of the bytes that `before` is the checksum of, and these."""
    if isinstance(content, bytes):
        return int(google_crc32c.extend(before, content))
    # The library takes no memory that must be released, and an array's need not be.
    return int(google_crc32c.extend(before, np.frombuffer(content, np.uint8))) if len(content) else before
