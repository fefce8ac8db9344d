"""Every kind of failure that the cache, the network and checkpoints must survive is held by a test that says so.

The kinds are numbered 26 to 46; a test that holds one says `CASES 27` in its docstring. What each is:

26. a partial download served as complete, wrong bytes served for ever, a zero-length file taken for a hit
27. an overwritten object: the old one served, or parts of two versions mixed
28. one shard downloaded once per process; the one that fails leaves the others waiting for ever
29. eviction of what another process is about to read, or of the only copy
30. a limit that is exceeded under concurrency; a hang because nothing can be evicted or one object is too large
31. a disk that is full, read-only, failing or slow
32. two daemons on one directory or socket; what a crash left; another user's files
33. a start that takes minutes because an old cache is scanned or deleted first
34. two URLs with one cache entry
35. throttling without recovery, storms of retries, stalls without end, limits on whole requests that make progress
36. credentials that expire in mid-run; one message for a region, an endpoint, a permission and an object
37. an error page with status 200 cached as data; listings that take an hour on every rank
38. a part of a checkpoint taken for all of it; the newest directory resumed because it is newest
39. an upload that fails in silence; the last checkpoint lost because the process exits first
40. each checkpoint like the first one; two steps mixed in one
41. a save and a training step that lock each other out; one slow rank that times the others out
42. memory of the host that grows with every save
43. retention that deletes the last good checkpoint, or counts incomplete ones
44. another world size: keys missing, optimizer state permuted, a tensor that does not divide
45. one step saved twice; two jobs in one root; a restart while an old upload runs
46. a checkpoint that is damaged at rest, and loads

Torch's distributed checkpoints have traps of their own, of which a test that holds one says `T7`:

1. a thread that writes fails, and `save` returns with tensors missing
2. a second save with the same buffers puts its values into the first
3. one key on all ranks is kept once, and restored everywhere as one rank's
4. a save over a directory that is cut short leaves old metadata over new files
5. a flipped byte loads
6. a save and training that share a group hang
7. a save that nobody awaits fails in silence
8. files are synced one by one, or the whole machine is; directories never
9. a checkpoint can run code when it is loaded
10. loading needs a template with the same keys
11. an optimizer step before the copy is complete tears it
12. buffers that are made for each save are not given back
13. a process of its own for uploads dies with the trainer
14. asking an optimizer that has not stepped for its state makes it step
15. its exception is no `Exception`
16. names that lead out of the directory are followed
17. a node's own files cannot be loaded alone, and metadata are on one node
18. buffers of BatchNorm differ by rank, and change in a forward pass
"""

import ast
import re
from pathlib import Path

KINDS = range(26, 47)
TRAPS = range(1, 19)
_NAMED = re.compile(r"\bCASES ((?:\d+(?:, | and )?)+)")
_TRAP = re.compile(r"\bT(\d+)\b")
_TESTS = Path(__file__).parents[1]


def docstrings(source: str) -> list[str]:
    """Of a module's tests."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [ast.get_docstring(function) or "" for function in functions if function.name.startswith("test_")]


def named_in(source: str) -> set[int]:
    """The kinds that docstrings of a module's tests name."""
    found = (found for text in docstrings(source) for found in _NAMED.findall(text))
    return {int(number) for numbers in found for number in re.findall(r"\d+", numbers)}


def traps_in(source: str) -> set[int]:
    """The traps that they name."""
    return {int(number) for text in docstrings(source) for number in _TRAP.findall(text)}


def test_every_kind_of_failure_is_named_by_a_test_that_holds_it() -> None:
    named = {number for path in _TESTS.rglob("test_*.py") for number in named_in(path.read_text())}
    assert set(KINDS) - named == set()


def test_every_trap_of_torchs_checkpoints_is_named_by_a_test_that_holds_it() -> None:
    assert {number for path in _TESTS.rglob("test_*.py") for number in traps_in(path.read_text())} == set(TRAPS)


def test_only_docstrings_of_tests_count_and_one_may_name_several() -> None:
    source = """
'''CASES 26, T1.'''
def test_a():
    '''Holds. CASES 27, 28 and 31. T2, T13: both.'''
def helper():
    '''CASES 29, T3'''
class T:
    def test_b(self):
        '''CASES 30: not T1000s, but T4'''
"""
    assert named_in(source) == {27, 28, 30, 31}
    assert traps_in(source) == {2, 4, 13}
