"""What `import forebay` gives, and what it does not load."""

import subprocess
import sys

import pytest

import forebay

PUBLIC = """
    IS_PAD POSITION SAMPLE_ID SOURCE
    DataLoader StreamingDataset Mixture Buckets OrderOptions Packing Parquet Tokens BatchTiming SkippedSample sample_rng
    Checkpointer NvmeStagingWriter CheckpointReader
    __version__
    ForebayError ConfigurationError SourceError UnknownScheme SourceNotFound AccessDenied SourceUnreachable
    ObjectChanged BadObject ColumnNotFound EmptyDataset CapacityError StateError StateMismatch
    SampleError CheckpointError CheckpointNotFound CheckpointDamaged CheckpointFenced StagingFull
    DaemonError DaemonUnavailable InternalError WorkerError
"""


def test_the_public_names_are_these_and_each_of_them_is_there() -> None:
    assert sorted(forebay.__all__) == sorted(PUBLIC.split())
    for name in forebay.__all__:
        assert getattr(forebay, name) is not None
    assert set(dir(forebay)) == set(forebay.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Loader"):
        forebay.Loader  # noqa: B018


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_importing_loads_neither_torch_nor_mlflow_nor_grpc() -> None:
    code = "import sys, forebay; print([name for name in ('torch', 'mlflow', 'grpc', 'pandas') if name in sys.modules])"
    assert run(code) == "[]"


def test_without_torch_a_name_that_needs_it_says_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
import forebay
try:
    forebay.DataLoader
except ImportError as error:
    print(error)
"""
    assert "pip install 'forebay[torch]'" in run(code)


def test_the_daemon_never_loads_torch_or_mlflow_or_pandas() -> None:
    code = "import sys, forebay_server.__main__; print([n for n in ('torch', 'mlflow', 'pandas') if n in sys.modules])"
    assert run(code) == "[]"
