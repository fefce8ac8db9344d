"""Names of attempts and of their files, and what must not pass for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_core.checkpoints.names import (
    METADATA,
    MOST_GENERATION,
    MOST_STEP,
    OBJECTS,
    Attempt,
    checked_file,
    generation_key,
    is_file,
    ledger_key,
    parse_attempt,
    parse_decision_key,
    parse_file,
    parse_number,
    parse_rank,
    rank_data,
    rank_manifest,
)
from forebay_core.errors import ConfigurationError

attempts = st.builds(
    Attempt, st.integers(0, MOST_GENERATION), st.integers(0, MOST_STEP), st.from_regex(r"[0-9a-f]{12}", fullmatch=True)
)
OWN = [METADATA, OBJECTS, "__0_0.distcp", "__131_2.distcp", rank_manifest(0), rank_manifest(99_999), rank_data(7)]
FOREIGN = [
    "",
    "..",
    "../x",
    "ranks/../.metadata",
    "ranks/0.json",
    "ranks/00000.json/x",
    "ranks/00000.json\n",
    "/.metadata",
    ".metadata/",
    "__0_0.distcp.tmp",
    "__a_0.distcp",
    "__٣_0.distcp",
    "ranks/٠٠٠٠٠.json",
    "other/00000.json",
    "\x00",
]


@given(attempts)
def test_an_attempt_is_found_again_in_its_name_and_in_its_keys(attempt: Attempt) -> None:
    assert parse_attempt(attempt.name) == attempt
    assert parse_attempt(attempt.decision) == parse_decision_key(attempt.decision) == attempt
    for file in OWN:
        assert parse_file(attempt.key(file)) == (attempt, file)


@given(attempts, attempts)
def test_names_sort_as_attempts_do_by_generation_and_step(one: Attempt, other: Attempt) -> None:
    assert (one < other) == (one.name < other.name)


def test_two_draws_of_one_step_are_two_attempts() -> None:
    """CASES 45"""
    assert Attempt.draw(3, 100) != Attempt.draw(3, 100)


@pytest.mark.parametrize("file", OWN)
def test_a_file_of_a_checkpoint_is_known_by_its_name(file: str) -> None:
    assert is_file(file)
    assert checked_file(file) == file


@pytest.mark.parametrize("file", FOREIGN)
def test_a_name_that_leads_elsewhere_is_refused(file: str) -> None:
    """T16"""
    assert not is_file(file)
    assert parse_file(f"attempts/g000001-s000000001-000000000000/{file}") is None
    with pytest.raises(ConfigurationError, match="is no file of a checkpoint"):
        Attempt(1, 1, "0" * 12).key(file)


@given(st.text())
def test_any_text_is_a_name_or_none_and_nothing_else_happens(text: str) -> None:
    for key in (text, f"attempts/{text}", f"commits/{text}.json", f"generations/{text}.json"):
        assert parse_file(key) is None or key.startswith("attempts/g")
        parsed = parse_decision_key(key)
        assert parsed is None or parsed.decision == key
        parse_attempt(key)
        parse_number(key)
        parse_rank(key)


@pytest.mark.parametrize(
    "key",
    [
        "g000001-s000000001-000000000000/.metadata",
        "old/attempts/g000001-s000000001-000000000000/.metadata",
        "attempts/g000001-s000000001-000000000000.json/.metadata",
        "attempts/g000001-s000000001-00000000000/.metadata",
        "attempts/g00001-s000000001-000000000000/.metadata",
        "attempts/x/g000001-s000000001-000000000000/.metadata",
    ],
)
def test_an_object_at_another_place_is_no_file_of_an_attempt(key: str) -> None:
    assert parse_file(key) is None


def test_keys_beside_the_decisions_are_no_decisions() -> None:
    name = "g000001-s000000001-000000000000"
    for key in (f"commits/{name}", f"commits/{name}.json.bak", f"commits/x/{name}.json", f"attempts/{name}.json"):
        assert parse_decision_key(key) is None


@pytest.mark.parametrize(("generation", "step"), [(-1, 0), (0, -1), (MOST_GENERATION + 1, 0), (0, MOST_STEP + 1)])
def test_numbers_that_would_not_sort_any_more_are_refused(generation: int, step: int) -> None:
    with pytest.raises(ConfigurationError, match="a checkpoint is of a generation from 0 to"):
        Attempt(generation, step, "0" * 12)


@pytest.mark.parametrize("nonce", ["", "0" * 11, "0" * 13, "g" * 12, "A" * 12, "0" * 12 + "\n"])
def test_a_nonce_is_twelve_hexadecimal_digits(nonce: str) -> None:
    with pytest.raises(ConfigurationError, match="give 12 hexadecimal digits"):
        Attempt(0, 0, nonce)


def test_numbers_are_found_again_in_keys_of_generations_and_ledger_parts() -> None:
    assert parse_number(generation_key(7)) == 7
    assert parse_number(ledger_key(7, 12)) == 12
    assert parse_number("generations/latest.json") is None


def test_the_rank_of_a_manifest_is_in_its_name() -> None:
    assert parse_rank(rank_manifest(31)) == 31
    assert parse_rank(rank_data(31)) is None
    assert parse_rank("ranks/31.json") is None
