"""Tensors are written as torch.save writes them, without a call of torch's for each."""

import io
from typing import Any

import pytest
import torch
from torch.serialization import get_crc32_options, set_crc32_options

from forebay.checkpoint import frames

KINDS = [
    torch.float32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.bool,
    torch.int64,
    torch.uint16,
    torch.complex64,
]
SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (3, 0), (7,), (5, 3), (2, 1, 4), (40_000,)]


def some(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    size = torch.empty(shape, dtype=dtype).nbytes
    generator = torch.Generator().manual_seed(seed)
    content = torch.randint(0, 2 if dtype is torch.bool else 100, (size,), generator=generator, dtype=torch.uint8)
    return content.view(dtype).reshape(shape)


def saved(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    frames.save(tensor, file)
    return file.getvalue()


def saved_by_torch(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    set_crc32_options(False)
    try:
        torch.save(tensor, file)
    finally:
        set_crc32_options(True)
    return file.getvalue()


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_written_is_what_torch_writes_without_the_archives_checksums(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    for seed in range(2):
        tensor = some(dtype, shape, seed)
        content = saved(tensor)
        assert content == saved_by_torch(tensor)
        loaded = torch.load(io.BytesIO(content))
        assert (loaded.dtype, loaded.shape) == (dtype, torch.Size(shape))
        assert raw(loaded) == raw(tensor)


def test_of_a_part_of_a_storage_that_part_alone_is_written() -> None:
    whole = some(torch.float32, (100, 50))
    assert saved(whole[10:20]) == saved_by_torch(whole[10:20].clone())
    assert len(saved(whole[10:20])) < 10 * 50 * 4 + 3000


def tensors_of_other_kinds() -> dict[str, Any]:
    return {
        "transposed": some(torch.float32, (5, 3)).t(),
        "conjugated": some(torch.complex64, (4,)).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }


@pytest.mark.parametrize("kind", tensors_of_other_kinds())
def test_tensors_that_are_not_plain_are_written_by_torch(kind: str) -> None:
    tensor = tensors_of_other_kinds()[kind]
    loaded = torch.load(io.BytesIO(saved(tensor)))
    assert loaded.dtype == tensor.dtype
    assert torch.equal(_dense(loaded), _dense(tensor.detach()))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_dense() if tensor.is_sparse else tensor).resolve_conj()


def test_a_torch_that_writes_tensors_in_several_parts_is_asked_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = some(torch.float32, (11, 13))

    class InParts(frames._Recorded):
        def write(self, content: Any) -> int:
            view = memoryview(content)
            return sum(super(InParts, self).write(view[at : at + 100]) for at in range(0, len(view), 100))

    monkeypatch.setattr(frames, "_Recorded", InParts)
    frames._frame_of.cache_clear()
    try:
        assert torch.equal(torch.load(io.BytesIO(saved(tensor))), tensor)
    finally:
        frames._frame_of.cache_clear()


def test_the_archives_checksums_of_everybody_else_stay_on() -> None:
    saved(torch.ones(3, 1, 4, 1, 5))
    assert get_crc32_options()


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_was_written_is_seen_in_place(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = some(dtype, shape)
    content = bytearray(saved(tensor))
    found = frames.view(memoryview(content), dtype, torch.Size(shape))
    assert found is not None
    assert (found.dtype, found.shape) == (dtype, torch.Size(shape))
    assert raw(found) == raw(tensor)
    if tensor.nbytes > 1000:
        content[content.index(raw(tensor)) + tensor.nbytes - 1] ^= 1
        assert raw(found) != raw(tensor)


def test_bytes_of_anything_else_are_no_tensor_of_that_kind() -> None:
    tensor = some(torch.float32, (5, 3))
    content = saved(tensor)
    at = content.index(raw(tensor))
    for other in (
        content[:-1],
        content + b"x",
        b"x" + content[1:],
        content[:-1] + bytes([content[-1] ^ 1]),
        content[: at - 1] + bytes([content[at - 1] ^ 1]) + content[at:],
        saved(some(torch.float32, (3, 5))),
        saved(some(torch.int32, (5, 3))),
        saved(tensors_of_other_kinds()["transposed"]),
        b"",
    ):
        assert frames.view(memoryview(bytearray(other)), torch.float32, torch.Size((5, 3))) is None


def test_of_more_than_there_is_no_frame_is_made() -> None:
    content = memoryview(bytearray(saved(some(torch.float32, (5, 3)))))
    assert frames.view(content, torch.float32, torch.Size((1 << 30, 1 << 30))) is None
