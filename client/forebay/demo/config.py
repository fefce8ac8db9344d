"""What the demo tells its trainer: one JSON file for each run."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["TrainConfig"]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One run of the trainer: its checkpoints go to `root`, and it goes on from what is there."""

    run: int
    source: str
    root: str
    address: str
    directory: str
    tracking_uri: str
    sample_bytes: int
    seed: int = 0
    epochs: int = 2
    global_batch_size: int = 64
    save_every_steps: int = 20
    keep_last: int = 3
    learning_rate: float = 3e-3

    @classmethod
    def read(cls, path: Path) -> "TrainConfig":
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))
