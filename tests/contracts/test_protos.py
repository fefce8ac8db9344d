"""The wire contract: committed generated code is what the .proto says, and the .proto keeps the naming rules.

Descriptors are compared, not text: they are what both sides speak, whichever generator wrote the files. The rules are
those of buf's standard lint that concern names.
"""

import re
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2

import forebay_protos
from forebay_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    checkpoints_pb2,
    checkpoints_pb2_grpc,
    daemon_pb2,
    daemon_pb2_grpc,
)

ROOT = Path(forebay_protos.__file__).parent.parent
DIRECTORY = "forebay_protos/v1"
#: By the name of its file: each contract's generated descriptor, stub and servicer.
CONTRACTS = {
    "daemon": (daemon_pb2.DESCRIPTOR, daemon_pb2_grpc.DaemonServiceStub, daemon_pb2_grpc.DaemonServiceServicer),
    "admin": (admin_pb2.DESCRIPTOR, admin_pb2_grpc.AdminServiceStub, admin_pb2_grpc.AdminServiceServicer),
    "checkpoints": (
        checkpoints_pb2.DESCRIPTOR,
        checkpoints_pb2_grpc.CheckpointServiceStub,
        checkpoints_pb2_grpc.CheckpointServiceServicer,
    ),
}
PACKAGE = "forebay.v1"
LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
PASCAL = re.compile(r"([A-Z][a-z0-9]+)+")


def compiled(name: str, root: Path, output: Path) -> descriptor_pb2.FileDescriptorProto:
    """The .proto below `root` as protoc understands it now, less what generated code leaves out."""
    proto = f"{DIRECTORY}/{name}.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={output}", proto]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    [file] = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file
    for message in file.message_type:
        for field in [*message.field, *(field for nested in message.nested_type for field in nested.field)]:
            field.ClearField("json_name")
    return file


def committed(name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    CONTRACTS[name][0].CopyToProto(file)
    return file


@pytest.fixture(scope="module", params=sorted(CONTRACTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def contract(name: str, tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorProto:
    return compiled(name, ROOT, tmp_path_factory.mktemp("protos") / "set")


def test_every_contract_of_the_directory_is_checked_here() -> None:
    assert {path.stem for path in (ROOT / DIRECTORY).glob("*.proto")} == set(CONTRACTS)


def test_the_committed_code_is_generated_from_the_committed_contract(
    name: str,
    contract: descriptor_pb2.FileDescriptorProto,
) -> None:
    assert committed(name) == contract, "the .proto has changed: run make protos"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("string dataset_id = 1;", "string data_set_id = 1;"),
        ("uint32 piece = 1;", "uint64 piece = 1;"),
        ("returns (GetStatusResponse)", "returns (stream GetStatusResponse)"),
        ("bool pending = 8;", "bool pending = 8; bool more = 1000;"),
    ],
)
def test_a_change_of_the_contract_alone_would_be_seen(tmp_path: Path, before: str, after: str) -> None:
    proto = f"{DIRECTORY}/daemon.proto"
    text = (ROOT / proto).read_text()
    assert before in text
    changed = tmp_path / proto
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(before, after, 1))
    assert compiled("daemon", tmp_path, tmp_path / "set") != committed("daemon")


def test_the_generated_stubs_are_those_of_the_services_methods(
    name: str, contract: descriptor_pb2.FileDescriptorProto
) -> None:
    [service] = contract.service
    _, make_stub, servicer = CONTRACTS[name]
    with grpc.insecure_channel("unix:/nobody") as channel:
        stub = make_stub(channel)  # type: ignore[no-untyped-call]
    methods = {method.name for method in service.method}
    assert {name for name in vars(stub) if not name.startswith("_")} == methods
    assert {name for name in vars(servicer) if not name.startswith("_")} == methods
    kinds = {
        (False, False): grpc.UnaryUnaryMultiCallable,
        (True, False): grpc.StreamUnaryMultiCallable,
        (False, True): grpc.UnaryStreamMultiCallable,
        (True, True): grpc.StreamStreamMultiCallable,
    }
    for method in service.method:
        kind = kinds[method.client_streaming, method.server_streaming]
        assert isinstance(getattr(stub, method.name), kind), method.name


def test_the_typing_stub_names_every_message(name: str, contract: descriptor_pb2.FileDescriptorProto) -> None:
    text = (ROOT / DIRECTORY / f"{name}_pb2.pyi").read_text()
    declared = set(re.findall(r"^class (\w+)\(", text, flags=re.MULTILINE))
    assert declared == {message.name for message in contract.message_type}
    for message in contract.message_type:
        for field in message.field:
            assert re.search(rf"\b{field.name}\b", text), f"{message.name}.{field.name}"


def test_the_package_is_the_directory_with_a_version(contract: descriptor_pb2.FileDescriptorProto) -> None:
    assert contract.syntax == "proto3"
    assert contract.package == PACKAGE
    assert Path(contract.name).parent.parts == ("forebay_protos", "v1")


def test_services_end_in_service_and_every_method_has_its_own_request_and_response(
    contract: descriptor_pb2.FileDescriptorProto,
) -> None:
    used: list[str] = []
    for service in contract.service:
        assert service.name.endswith("Service")
        for method in service.method:
            assert PASCAL.fullmatch(method.name)
            assert method.input_type == f".{PACKAGE}.{method.name}Request"
            assert method.output_type == f".{PACKAGE}.{method.name}Response"
            used += [method.input_type, method.output_type]
    assert len(used) == len(set(used)) > 0


def test_messages_are_pascal_case_and_fields_lower_snake_case(contract: descriptor_pb2.FileDescriptorProto) -> None:
    assert contract.message_type
    for message in contract.message_type:
        assert PASCAL.fullmatch(message.name), message.name
        for field in message.field:
            assert LOWER_SNAKE.fullmatch(field.name), f"{message.name}.{field.name}"


def test_no_request_or_response_is_left_without_a_method(contract: descriptor_pb2.FileDescriptorProto) -> None:
    called = {name for service in contract.service for m in service.method for name in (m.input_type, m.output_type)}
    envelopes = {f".{PACKAGE}.{message.name}" for message in contract.message_type}
    assert {name for name in envelopes if name.endswith(("Request", "Response"))} == called
