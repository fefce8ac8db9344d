"""The demo's model: a byte-level transformer, small enough for two CPU cores and large enough that its loss falls."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256


class Block(nn.Module):
    """One pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.attention_in(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.feed(self.feed_norm(x))
        return out


class ByteModel(nn.Module):
    """Predicts each byte of a sample from the ones before it."""

    def __init__(self, length: int, width: int = 48, blocks: int = 1, heads: int = 2) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy in nats of each sample: float [n] of text uint8 [n, length]."""
        tokens = text.long()
        logits = self.head(self.blocks(self.bytes(tokens[:, :-1]) + self.places[: tokens.shape[1] - 1]))
        losses = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        per_sample: torch.Tensor = losses.view(len(tokens), -1).mean(dim=1)
        return per_sample
