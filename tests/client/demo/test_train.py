"""One optimizer step must be the same on any number of ranks, whatever their shares: real gloo ranks under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

RANK_PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from forebay.demo.model import ByteModel
from forebay.demo.train import optimizer_step

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(ByteModel(16, width=8))
text = torch.randint(0, 256, (64, 16), dtype=torch.uint8)
mine = torch.tensor_split(text, dist.get_world_size())[dist.get_rank()]
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
losses = [optimizer_step(model, optimizer, mine) for _ in range(2)]
if dist.get_rank() == 0:
    torch.save({"model": model.module.state_dict(), "losses": losses}, sys.argv[1])
dist.destroy_process_group()
"""


def train(directory: Path, ranks: int) -> dict[str, object]:
    program, saved = directory / "rank.py", directory / f"{ranks}.pt"
    program.write_text(RANK_PROGRAM)
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        str(ranks),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *launcher, str(program), str(saved)], check=True, timeout=90, env=environment)
    loaded: dict[str, object] = torch.load(saved, weights_only=True)
    return loaded


@pytest.mark.slow
def test_a_step_on_22_21_and_21_samples_is_the_step_on_64(tmp_path: Path) -> None:
    alone, together = train(tmp_path, 1), train(tmp_path, 3)
    torch.testing.assert_close(together["model"], alone["model"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(together["losses"], alone["losses"], rtol=1e-5, atol=1e-6)
