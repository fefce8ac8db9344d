"""What findings come to together."""

import pytest

from forebay.doctor.findings import failed, ok, summary, warning


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([ok("a", "")], "1 ok"),
        ([ok("a", ""), ok("b", ""), failed("c", "d")], "2 ok, 1 problem"),
        ([warning("a", "", ""), failed("c", "d"), failed("c", "d")], "1 warning, 2 problems"),
        ([warning("a", "", ""), warning("b", "", "")], "2 warnings"),
    ],
    ids=str,
)
def test_verdicts_are_counted_with_their_plurals(findings: list[object], said: str) -> None:
    assert summary(findings) == said  # type: ignore[arg-type]
