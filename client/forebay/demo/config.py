"""What the demo tells its trainer: one JSON file for each run."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["TrainConfig"]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One run of the trainer. Run 0 starts, a later one resumes from the checkpoint in `directory`."""

    run: int
    source: str
    address: str
    directory: str
    tracking_uri: str
    sample_bytes: int
    seed: int = 0
    epochs: int = 2
    global_batch_size: int = 64
    save_every_steps: int = 20
    learning_rate: float = 3e-3

    @classmethod
    def read(cls, path: Path) -> "TrainConfig":
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1))

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory) / "checkpoint.pt"
