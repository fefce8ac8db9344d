"""An existing training script after the one-line change, on a map-style dataset and on a bucket.

    python examples/swap_in.py                                      # a map-style dataset, unchanged
    python examples/swap_in.py --source s3://my-bucket/train        # Parquet shards with columns x and y, as in README

The change is the import of `DataLoader`. What it brings: stop the script anywhere (`--stop-after`), run it again with
any number of ranks, workers or samples in a batch, and every sample of the epoch is still read exactly once, each with
the random numbers that it had.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch

# from torch.utils.data import DataLoader    # before
from forebay import DataLoader, StreamingDataset, sample_rng  # after


class Points(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Any map-style dataset: y = 3 x + 1, seen with noise that is drawn for each sample."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = index / len(self)
        noisy = x + 0.01 * sample_rng().standard_normal()
        return {"x": torch.tensor([noisy], dtype=torch.float32), "y": torch.tensor([3 * x + 1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="Parquet shards with columns x and y: an s3:// prefix, a directory, or a glob")
    parser.add_argument("--state", type=Path, default=Path("swap_in.json"), help="where position and model are kept")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, help="stop after so many steps, as a job does that is preempted")
    options = parser.parse_args()

    dataset: Any = Points()
    if options.source is not None:
        dataset = StreamingDataset(options.source, columns=["x", "y"])
    loader = DataLoader(dataset, options.batch_size, shuffle=True, num_workers=options.num_workers)

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if options.state.exists():
        saved = json.loads(options.state.read_text())
        model.load_state_dict({name: torch.tensor(value) for name, value in saved["model"].items()})
        loader.load_state_dict(saved["loader"])
        print(f"going on in epoch {loader.epoch} at position {loader.position}")

    left = options.stop_after
    while loader.epoch < options.epochs and left != 0:
        steps = 0
        for batch in islice(loader, left):
            x = batch["x"].reshape(len(batch["x"]), -1)[:, :1]  # where it is a list, its first number
            loss = torch.nn.functional.mse_loss(model(x), batch["y"].reshape(-1, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        left = None if left is None else left - steps
        print(f"epoch {loader.epoch}, position {loader.position}: {steps} steps, loss {loss.item():.4f}")
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    options.state.write_text(json.dumps({"model": weights, "loader": loader.state_dict()}))
    loader.close()


if __name__ == "__main__":
    main()
