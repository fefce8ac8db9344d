"""Small real datasets whose every value follows from the sample's number, so that a test can say what it must read.

Sample ids count through the shards in the order of their names, as the manifest's do.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

EMBEDDING_WIDTH = 4
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("value", pa.float32()),
        pa.field("embedding", pa.list_(pa.float32(), EMBEDDING_WIDTH)),
        pa.field("blob", pa.binary()),
    ]
)


def row(sample_id: int) -> dict[str, Any]:
    """What the Parquet datasets hold for one sample, as Python values."""
    return {
        "id": sample_id,
        "text": f"sample {sample_id} – ü{'x' * (sample_id % 5)}",
        "value": sample_id / 4,
        "embedding": [float(sample_id + column) for column in range(EMBEDDING_WIDTH)],
        "blob": sample_id.to_bytes(8, "little") * (sample_id % 3),
    }


def write_parquet(
    directory: Path, *, shards: int = 4, rows: int = 100, row_group_rows: int = 40, first_id: int = 0
) -> list[Path]:
    """Write `shards` files of `rows` rows each and return their paths in order; the directory is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"shard-{shard:05d}.parquet" for shard in range(shards)]
    for shard, path in enumerate(paths):
        start = first_id + shard * rows
        table = pa.Table.from_pylist([row(sample_id) for sample_id in range(start, start + rows)], schema=SCHEMA)
        pq.write_table(table, path, row_group_size=row_group_rows)
    return paths


def tokens(*, samples: int, sequence_length: int, dtype: npt.DTypeLike = np.int32) -> npt.NDArray[Any]:
    """The values of a token file, of shape (samples, sequence_length): the running index modulo 32,003."""
    flat = np.arange(samples * sequence_length, dtype=np.int64) % 32_003
    return flat.astype(dtype).reshape(samples, sequence_length)


def write_tokens(
    path: Path, *, samples: int, sequence_length: int, dtype: npt.DTypeLike = np.int32
) -> npt.NDArray[Any]:
    """Write `tokens(...)` flat, raw or as a one-dimensional array by the extension (`.bin`, `.npy`), and return it."""
    values = tokens(samples=samples, sequence_length=sequence_length, dtype=dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, values.reshape(-1))
    elif path.suffix == ".bin":
        values.tofile(path)
    else:
        raise ValueError(f"{path}: token files end in .bin or .npy")
    return values
