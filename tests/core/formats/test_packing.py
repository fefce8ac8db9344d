"""The options of sequence packing, and the tokenizer's way from the trainer to the daemon."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay_core.errors import ConfigurationError
from forebay_core.formats.packing import Packing, TokenizerFile
from tests.support.packing import write_tokenizer


def spec_of(path: Path) -> dict[str, Any]:
    return json.loads(json.dumps(Packing(8, "text", str(path)).spec()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_length": 0}, "sequence_length"),
        ({"sequence_length": True}, "sequence_length"),
        ({"sequence_length": 2.0}, "sequence_length"),
        ({"sequence_length": 1 << 40}, "at most"),
        ({"column": ""}, "column"),
        ({"column": ["a"]}, "column"),
        ({"remainder": "keep"}, "remainder='keep'.*'drop', 'pad'"),
        ({"remainder": ["pad"]}, "remainder"),
        ({"dtype": "uint16"}, "dtype='uint16'.*'int32', 'int64'"),
        ({"pad": None}, "pad=None"),
        ({"pad": 2**31}, "pad=2147483648.*int32 can hold"),
        ({"separator": -(2**31) - 1}, "separator"),
        ({"separator": "</s>"}, "separator"),
        ({"separator": True}, "separator"),
        ({"tokenizer": 3}, "must be the path of a tokenizer.json"),
        ({"tokenizer": object()}, r"Tokenizer\.save"),
        ({"special_tokens": True}, "special_tokens"),
        ({"special_tokens": True, "tokenizer": "bytes"}, "special_tokens"),
        ({"special_tokens": 1}, "special_tokens"),
    ],
)
def test_options_that_cannot_work_are_refused_when_they_are_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Packing(**{"sequence_length": 8, "column": "ids", **options})


def test_ids_of_64_bits_are_taken_where_the_tokens_are() -> None:
    assert Packing(8, "ids", separator=2**40, dtype="int64").separator == 2**40


def test_a_tokenizer_is_named_by_its_absolute_path_and_the_digest_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokenizer(tmp_path / "t.json", ["a"])
    monkeypatch.chdir(tmp_path)
    digest = f"sha256:{hashlib.sha256((tmp_path / 't.json').read_bytes()).hexdigest()}"
    for given in ("t.json", Path("t.json"), str(tmp_path / "t.json")):
        packing = Packing(8, "text", given)
        assert packing.spec()["tokenizer"] == {"path": str(tmp_path / "t.json"), "digest": digest}
        assert Packing.from_spec(json.loads(json.dumps(packing.spec()))) == packing
        assert pickle.loads(pickle.dumps(packing)) == packing


def test_what_a_dataset_is_depends_on_the_tokenizers_content_and_not_on_its_place(tmp_path: Path) -> None:
    for name, words in (("a", ["x"]), ("b", ["x"]), ("c", ["y"])):
        write_tokenizer(tmp_path / name / "t.json", words)
    one, copy, other = (Packing(8, "text", tmp_path / name / "t.json") for name in "abc")
    assert one.identity() == copy.identity() != other.identity()
    assert one.spec() != copy.spec()


@pytest.mark.parametrize("place", ["missing", "directory", "fifo", "huge", "device"])
def test_a_tokenizer_that_is_no_readable_file_of_bounded_size_is_refused_on_both_sides(
    place: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    if place == "directory":
        path.mkdir()
    elif place == "fifo":
        os.mkfifo(path)
    elif place == "huge":
        path.touch()
        os.truncate(path, (256 << 20) + 1)
    elif place == "device":
        path.symlink_to("/dev/zero")
    message = "larger than 256 MiB" if place == "huge" else "cannot be read here by user"
    with pytest.raises(ConfigurationError, match=message):
        Packing(8, "text", path)
    sent = {**Packing(8, "text").spec(), "tokenizer": {"path": str(path), "digest": f"sha256:{'0' * 64}"}}
    file = Packing.from_spec(sent).file
    assert file is not None
    with pytest.raises(ConfigurationError, match=message):
        file.load()


def test_a_tokenizer_that_is_another_one_for_the_daemon_is_refused_with_both_digests(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t.json", ["a"])
    file = Packing.from_spec(spec_of(tmp_path / "t.json")).file
    write_tokenizer(tmp_path / "t.json", ["b"])
    assert file is not None
    with pytest.raises(ConfigurationError, match=f"has the digest sha256:.* for the daemon, and had {file.digest}"):
        file.load()


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"version": 3}')
    with pytest.raises(ConfigurationError, match=r"no tokenizer\.json that can be read"):
        TokenizerFile.read(path).load()


def test_a_tokenizer_is_loaded_once_for_all_pieces(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t.json", ["a"])
    one, other = (Packing.from_spec(spec_of(tmp_path / "t.json")).file for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.load() is other.load()


def test_without_the_library_it_is_said_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}")
    code = f"""
import sys
sys.modules["tokenizers"] = None
from forebay_core.formats.packing import Packing
file = Packing(8, "text", {str(path)!r}).file
try:
    file.load()
except ValueError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("ConfigurationError")
    assert "pip install 'forebay[tokenizers]'" in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "/etc/passwd"}, "must come with its digest"),
        ({"tokenizer": {"path": "/etc/passwd"}}, "does not take these options"),
        ({"tokenizer": {"path": "t.json", "digest": f"sha256:{'0' * 64}"}}, "not absolute"),
        ({"tokenizer": {"path": "/t\0", "digest": f"sha256:{'0' * 64}"}}, "not absolute"),
        ({"tokenizer": {"path": 3, "digest": f"sha256:{'0' * 64}"}}, "not absolute"),
        ({"tokenizer": {"path": "/t", "digest": "sha256:xyz"}}, "SHA-256"),
        ({"tokenizer": {"path": "/t", "digest": None}}, "SHA-256"),
        ({"tokenizer": ["bytes"]}, "must come with its digest"),
        ({"sequence_length": 10**12}, "at most"),
        ({"rows": 3}, "does not take these options"),
    ],
)
def test_what_a_client_may_not_send_is_refused_before_any_file_is_read(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Packing.from_spec({**Packing(8, "ids").spec(), **change})
    with pytest.raises(ConfigurationError, match="not a JSON object"):
        Packing.from_spec([1])
