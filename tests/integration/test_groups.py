"""Real gloo ranks: replicas, meshes and groups, and loaders made before the process group is."""

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from forebay.topology import Ranks
from forebay_core.errors import ConfigurationError

PROGRAM = """
import json, os, sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import forebay

class Numbers:
    def __len__(self): return 26
    def __getitem__(self, index): return {"x": index}

def read(loader):
    return [batch["x"].tolist() for batch in loader]

early = forebay.DataLoader(Numbers(), 3, True, seed=5)
dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
found = {
    "before init_process_group": read(early),
    "dp of dp × tp": read(forebay.DataLoader(Numbers(), 3, True, seed=5, device_mesh=mesh["dp"])),
    "all of dp × tp": read(forebay.DataLoader(Numbers(), 3, True, seed=5, device_mesh=mesh)),
    "half": read(forebay.DataLoader(Numbers(), 3, True, seed=5, process_group=halves[rank // 2])),
    "numbers": read(forebay.DataLoader(Numbers(), 3, True, seed=5, rank=0, world_size=1)),
}
try:
    read(forebay.DataLoader(Numbers(), 3, process_group=halves[1 - rank // 2]))
except forebay.ConfigurationError as error:
    found["another half"] = str(error)
print(json.dumps(found))
dist.destroy_process_group()
"""
WORLD = 4


def of_four_ranks(program: str) -> list[dict[str, Any]]:
    """What each rank's program prints."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(WORLD),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(WORLD)
    ]
    try:
        return [json.loads(process.communicate(timeout=100)[0]) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def test_every_way_to_name_the_data_parallel_group_shares_the_samples_out_over_it() -> None:
    found = of_four_ranks(PROGRAM)
    alone = found[0]["numbers"]

    def samples(batches: list[list[int]]) -> list[int]:
        return [sample for batch in batches for sample in batch]

    assert sorted(samples(alone)) == list(range(26))
    for name in ("before init_process_group", "all of dp × tp"):
        assert sorted(sample for rank in found for sample in samples(rank[name])) == list(range(26)), name
        assert len({len(rank[name]) for rank in found}) == 1
    for name, replicas in (("dp of dp × tp", [(0, 1), (2, 3)]), ("half", [(0, 2), (1, 3)])):
        for one, other in replicas:
            assert found[one][name] == found[other][name], "replicas read the same samples"
        parts = [samples(found[one][name]) for one, _ in replicas]
        assert sorted(parts[0] + parts[1]) == list(range(26)), name
    assert all("not in process_group" in rank["another half"] for rank in found)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rank": 0, "world_size": 1, "process_group": object()}, "give one of them"),
        ({"device_mesh": object(), "process_group": object()}, "give one of them"),
        ({"device_mesh": "dp"}, "no DeviceMesh"),
        ({"rank": 0}, "go together"),
        ({"rank": 2, "world_size": 2}, "does not exist"),
    ],
)
def test_ranks_that_contradict_each_other_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Ranks(**given)
