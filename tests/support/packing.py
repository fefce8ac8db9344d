"""Sequence packing as it is defined, in plain Python, to compare the packed format with; and a small tokenizer."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

UNKNOWN, BEGIN = 0, 1


def packed(
    documents: Iterable[Sequence[int] | None],
    length: int,
    *,
    separator: int | None = None,
    pad: int | None = None,
) -> list[list[int]]:
    """The sequences of one piece. `pad`: fills the last one, which is dropped where it is None."""
    tokens: list[int] = []
    for document in documents:
        if document:
            tokens += [*document, *([] if separator is None else [separator])]
    sequences = [tokens[start : start + length] for start in range(0, len(tokens), length)]
    if sequences and len(sequences[-1]) < length:
        last = sequences.pop()
        if pad is not None:
            sequences.append(last + [pad] * (length - len(last)))
    return sequences


def write_tokenizer(path: Path, words: Iterable[str]) -> Tokenizer:
    """Saves a tokenizer of whole words, whose file asks for truncation, padding and a leading special token."""
    vocabulary = {"[UNK]": UNKNOWN, "[BOS]": BEGIN, **{word: number for number, word in enumerate(words, 2)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", BEGIN)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=5)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer
