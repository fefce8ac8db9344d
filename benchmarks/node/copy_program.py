"""What obstore alone does: reads one object in ranges, so many at once, and writes each to a file of its own with its
crc32c. `python -m benchmarks.node.copy_program BUCKET KEY SIZE PART_BYTES AT_ONCE DIRECTORY`; prints what it cost as
JSON. Settings of the store come from the environment."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import obstore
from obstore.store import S3Store

from benchmarks.free_memory import touch
from benchmarks.shape import measured


def _write(path: Path, received: obstore.Bytes) -> None:
    data = received.to_bytes()  # which the checksum insists on
    google_crc32c.value(data)
    with path.open("wb", buffering=0) as file:
        file.write(data)


async def copy(store: S3Store, key: str, parts: Iterator[tuple[int, int]], at_once: int, directory: Path) -> None:
    async def work() -> None:
        for start, stop in parts:
            data = await obstore.get_range_async(store, key, start=start, end=stop)
            await asyncio.to_thread(_write, directory / str(start), data)

    await asyncio.gather(*(work() for _ in range(at_once)))


def main() -> None:
    bucket, key, *numbers, directory = sys.argv[1:]
    size, part, at_once = map(int, numbers)
    store = S3Store(
        bucket,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        region=os.environ["AWS_REGION"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    parts = ((start, min(start + part, size)) for start in range(0, size, part))
    obstore.head(store, key)
    touch(Path(directory), size)
    with measured() as usage:
        asyncio.run(copy(store, key, parts, at_once, Path(directory)))
    print(json.dumps({"wall_seconds": usage.wall_seconds, "cpu_seconds": usage.cpu_seconds}))


if __name__ == "__main__":
    main()
