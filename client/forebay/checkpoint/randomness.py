"""The random states of a rank: Python's, numpy's and torch's, of the CPU and of this process's CUDA device.

`capture` is cheap (it runs once a step); `encoded` makes JSON values of what it took, `restore` puts those back, and
`reseed` gives every generator a new seed where there are no states to put back. On the trainer's thread.
"""

import base64
import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forebay_core.errors import CheckpointDamaged


@dataclass(frozen=True, slots=True)
class RandomStates:
    """As the libraries give them."""

    python: tuple[Any, ...]
    numpy: Mapping[str, Any]
    torch_cpu: torch.Tensor
    cuda: torch.Tensor | None


def capture() -> RandomStates:
    """The states now."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() and torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    numpy: Any = np.random.get_state(legacy=False)
    return RandomStates(random.getstate(), numpy, torch.get_rng_state(), cuda)


def encoded(states: RandomStates) -> dict[str, Any]:
    """JSON values, about 10 KB."""
    version, words, gauss = states.python
    numpy = states.numpy
    return {
        "python": [version, _text(np.array(words, np.uint32).tobytes()), gauss],
        "numpy": {
            "bit_generator": str(numpy["bit_generator"]),
            "key": _text(np.asarray(numpy["state"]["key"], np.uint32).tobytes()),
            "pos": int(numpy["state"]["pos"]),
            "has_gauss": int(numpy["has_gauss"]),
            "gauss": float(numpy["gauss"]),
        },
        "torch": _text(states.torch_cpu.numpy().tobytes()),
        "cuda": None if states.cuda is None else _text(states.cuda.numpy().tobytes()),
    }


def restore(found: Mapping[str, Any]) -> str | None:
    """Puts encoded states back; gives what is to be said, if anything. `CheckpointDamaged` where they are none."""
    try:
        version, words, gauss = found["python"]
        numpy = found["numpy"]
        python = (int(version), tuple(np.frombuffer(_bytes(words), np.uint32).tolist()), gauss)
        state = {"key": np.frombuffer(_bytes(numpy["key"]), np.uint32), "pos": int(numpy["pos"])}
        gaussian = {"has_gauss": int(numpy["has_gauss"]), "gauss": float(numpy["gauss"])}
        random.setstate(python)
        np.random.set_state({"bit_generator": numpy["bit_generator"], "state": state, **gaussian})
        torch.set_rng_state(_tensor(found["torch"]))
        return _restore_cuda(found["cuda"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointDamaged(f"the random states are none ({type(error).__name__}: {error})") from error


def reseed(*what: object) -> None:
    """Seeds every generator of this process by a digest of what is given."""
    seed = int.from_bytes(hashlib.sha256(repr(what).encode()).digest()[:8], "big")
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def _restore_cuda(text: str | None) -> str | None:
    has_device = torch.cuda.is_available()
    if text is not None and has_device:
        torch.cuda.set_rng_state(_tensor(text))
    if (text is not None) == has_device:
        return None
    return "the checkpoint has a CUDA random state and this run no device" if text else None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(_bytes(text)), dtype=torch.uint8)
