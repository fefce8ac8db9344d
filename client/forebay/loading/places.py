"""Where a sample lies in the user's own data, for what people read."""

import numpy as np

from forebay_core.manifest import Manifest


def shard_row(manifest: Manifest, piece: int, row: int) -> tuple[str, int]:
    """A row of a piece: its shard's URL, and its number among the shard's rows."""
    objects = manifest.piece_object
    index = int(objects[piece])
    first = int(np.searchsorted(objects, index))
    before = int(manifest.row_start[piece] - manifest.row_start[first])
    return manifest.object_url(index), before + row
