"""The smallest whole training loop: stream, save the position with the model, and go on from it.

    python examples/quickstart.py s3://my-bucket/tokens --state position.json

Run it, stop it anywhere with Ctrl-C, and run it again: it goes on after the last batch it trained on, whatever was
prefetched. Under torchrun every rank gets its share, rank 0 keeps the position of all, and the number of ranks may
change between runs.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import forebay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="Parquet shards: an s3:// prefix, a directory, or a glob")
    parser.add_argument("--state", type=Path, default=Path("position.json"), help="where the position is kept")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()

    dataset = forebay.StreamingDataset(options.source, seed=17)
    loader = forebay.DataLoader(dataset, batch_size=options.batch_size)
    if options.state.exists():
        loader.load_state_dict(json.loads(options.state.read_text()))
        print(f"going on in epoch {loader.epoch} at position {loader.position}")
    state = None
    try:
        for epoch in range(loader.epoch, options.epochs):
            for batch in loader:
                train_on(batch)
                state = loader.state_dict()
            print(f"epoch {epoch} is done")
    except KeyboardInterrupt:
        print("\nstopped")
    finally:
        loader.close()
        if state is not None and os.environ.get("RANK", "0") == "0":
            save(state, options.state)


def save(state: dict[str, Any], path: Path) -> None:
    """In one move: whoever reads the file finds the old state or the new one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(state))
    draft.replace(path)
    print(f"epoch {state['epoch']}, position {state['position']}: kept in {path}")


def train_on(batch: dict[str, object]) -> None:
    """Your step: `batch` has one tensor (or one list, for text) for each column."""


if __name__ == "__main__":
    main()
