"""Which fills are believed, by every combination of what may be known."""

import pytest

from forebay_server.disk.digests import Digest
from forebay_server.filling.agreement import FillDigest, Verdict, Witnesses, judge

A, B, C = (Digest(10, number) for number in (1, 2, 3))


def fill(local: Digest, md5: str | None = None) -> FillDigest:
    return FillDigest(local, md5)


@pytest.mark.parametrize(
    ("witnesses", "fills", "verdict"),
    [
        (Witnesses(), [fill(A)], Verdict.BELIEVE),
        (Witnesses(earlier=A), [fill(A)], Verdict.BELIEVE),
        (Witnesses(earlier=A), [fill(B)], Verdict.FILL_AGAIN),
        (Witnesses(earlier=A), [fill(Digest(11, A.crc32c))], Verdict.FILL_AGAIN),
        (Witnesses(earlier=A), [fill(B), fill(A)], Verdict.BELIEVE),
        (Witnesses(earlier=A), [fill(B), fill(B)], Verdict.BELIEVE),
        (Witnesses(earlier=A), [fill(B), fill(C)], Verdict.REFUSE),
        (Witnesses(md5="m"), [fill(A, "m")], Verdict.BELIEVE),
        (Witnesses(md5="m"), [fill(A, "x")], Verdict.FILL_AGAIN),
        (Witnesses(md5="m"), [fill(A, "x"), fill(B, "m")], Verdict.BELIEVE),
        (Witnesses(md5="m"), [fill(A, "x"), fill(A, "x")], Verdict.BELIEVE),
        (Witnesses(md5="m"), [fill(A, "x"), fill(B, "y")], Verdict.REFUSE),
        (Witnesses(earlier=A, md5="m"), [fill(B, "m")], Verdict.BELIEVE),
        (Witnesses(earlier=A, md5="m"), [fill(A, "x")], Verdict.BELIEVE),
        (Witnesses(earlier=A, md5="m"), [fill(B, "x")], Verdict.FILL_AGAIN),
    ],
)
def test_a_fill_that_agrees_with_no_witness_is_made_once_more_and_two_of_three_are_believed(
    witnesses: Witnesses, fills: list[FillDigest], verdict: Verdict
) -> None:
    assert judge(witnesses, fills) is verdict
