"""Text for people, on a terminal or in a log: names of objects are anybody's, and may hold what a terminal obeys.

Pure.
"""

import unicodedata

_OBEYED = ("Cc", "Cs")


def printable(text: str) -> str:
    r"""The text with its control characters written out: `\n` and `\x1b`, and bytes that are no UTF-8 as `\udc80`."""
    if text.isprintable():
        return text
    return "".join(_written_out(each) if unicodedata.category(each) in _OBEYED else each for each in text)


def _written_out(character: str) -> str:
    return character.encode("unicode_escape").decode()
