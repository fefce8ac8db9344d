"""Messages between processes: values come back as they were, in memory that nobody can see by a name."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.loading.link import INLINE_BYTES, Link

Ends = tuple[Link, Link]


@pytest.fixture
def ends() -> Iterator[Ends]:
    here, there = (Link(end) for end in socket.socketpair())
    yield here, there
    here.close()
    there.close()


def passed(ends: Ends, value: Any) -> Any:
    here, there = ends
    here.send(7, value)
    number, received = there.receive()
    assert number == 7
    return received


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.tensor(5),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.arange(4).bfloat16(),
        torch.arange(4) + 1j,
        torch.ones(3).expand(4, 3),
        torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
        torch.arange(20000).reshape(100, 200).T,
        torch.arange(20000)[::3],
        torch.eye(3).to_sparse(),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        (torch.arange(2) + 1j).conj(),
    ],
    ids=str,
)
def test_a_tensor_comes_back_with_its_values_type_and_layout(ends: Ends, tensor: torch.Tensor) -> None:
    back = passed(ends, tensor)
    assert type(back) is type(tensor)
    assert (back.dtype, back.shape, back.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert back.requires_grad == tensor.requires_grad
    assert torch.equal(back.to_dense(), tensor.to_dense())
    if tensor.dim() == 4:
        assert back.stride() == tensor.stride()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_nested_tensor_comes_back(ends: Ends) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.arange(3.0)])
    back = passed(ends, nested)
    assert [part.tolist() for part in back.unbind()] == [[1, 1], [0, 1, 2]]


@pytest.mark.parametrize("length", [1, INLINE_BYTES, 300_000])
def test_small_and_large_values_of_every_kind_come_back_and_can_be_written(ends: Ends, length: int) -> None:
    value: dict[str, Any] = {
        "tensor": torch.arange(length),
        "array": np.arange(length),
        "text": "é" * length,
        "list": [b"x"] * length,
    }
    back = passed(ends, value)
    assert torch.equal(back["tensor"], value["tensor"])
    assert np.array_equal(back["array"], value["array"])
    assert (back["text"], back["list"]) == (value["text"], value["list"])
    back["tensor"][0] = back["array"][0] = 9
    assert value["tensor"][0] == 0


def test_a_slice_of_a_large_tensor_takes_its_own_bytes_alone(ends: Ends) -> None:
    large = torch.zeros(1 << 24)
    back = passed(ends, large[5:7])
    assert back.untyped_storage().nbytes() < 1000


def test_more_buffers_than_one_call_of_the_kernel_takes_come_back(ends: Ends) -> None:
    arrays = [np.full(5, number) for number in range(5000)]
    assert all(np.array_equal(back, array) for back, array in zip(passed(ends, arrays), arrays, strict=True))


def test_what_was_received_lies_in_memory_without_a_name_and_leaves_no_descriptor(ends: Ends) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    back = passed(ends, torch.zeros(1 << 20))
    assert set(Path("/proc/self/fd").iterdir()) == before
    mapped = Path("/proc/self/maps").read_text()
    assert "/memfd:forebay" in mapped
    del back
    assert "/memfd:forebay" not in Path("/proc/self/maps").read_text()


def test_dozens_of_messages_fit_before_anyone_reads(ends: Ends) -> None:
    here, there = ends
    for number in range(30):
        here.send(number, torch.full((100_000,), number))
    assert [int(there.receive()[1][5]) for _ in range(30)] == list(range(30))


def test_a_value_that_cannot_be_pickled_sends_nothing(ends: Ends) -> None:
    here, there = ends
    with pytest.raises((AttributeError, TypeError)):
        here.send(1, {"tensor": torch.zeros(9999), "lock": threading.Lock()})
    here.send(2, "next")
    assert there.receive() == (2, "next")


def test_a_closed_end_is_the_end_of_file_for_the_other(ends: Ends) -> None:
    here, there = ends
    there.send(1, "last words")
    there.close()
    assert here.receive() == (1, "last words")
    with pytest.raises(EOFError):
        here.receive()
    with pytest.raises(EOFError):
        here.send(1, None)


def test_a_peer_that_ends_in_the_middle_of_a_message_is_the_end_of_file(ends: Ends) -> None:
    here, there = ends
    there.send(1, list(range(100)))
    octets = socket.fromfd(here.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
    message = octets.recv(4096)
    octets.close()
    os.write(there.fileno(), message[:-5])
    there.close()
    with pytest.raises(EOFError):
        here.receive()
    assert here.is_cut


def test_a_forked_child_holds_no_link_open(ends: Ends) -> None:
    here, there = ends
    go, told = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told[1], b"1" if here.fileno() == there.fileno() == -1 else b"0")
        os.read(go[0], 1)
        os._exit(0)
    assert os.read(told[0], 1) == b"1"
    here.close()
    with pytest.raises(EOFError):
        there.receive()
    os.write(go[1], b".")
    os.waitpid(child, 0)
    for file in (*go, *told):
        os.close(file)
