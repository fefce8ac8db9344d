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
from forebay_protos.v1 import daemon_pb2, daemon_pb2_grpc

ROOT = Path(forebay_protos.__file__).parent.parent
PROTO = "forebay_protos/v1/daemon.proto"
PACKAGE = "forebay.v1"
LOWER_SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
PASCAL = re.compile(r"([A-Z][a-z0-9]+)+")


def compiled(root: Path, output: Path) -> descriptor_pb2.FileDescriptorProto:
    """The .proto below `root` as protoc understands it now, less what generated code leaves out."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={output}", PROTO]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    [file] = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")
    return file


def committed() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    daemon_pb2.DESCRIPTOR.CopyToProto(file)
    return file


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pb2.FileDescriptorProto:
    return compiled(ROOT, tmp_path_factory.mktemp("protos") / "set")


def test_the_committed_code_is_generated_from_the_committed_contract(
    contract: descriptor_pb2.FileDescriptorProto,
) -> None:
    assert committed() == contract, "the .proto has changed: run make protos"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("string dataset_id = 1;", "string data_set_id = 1;"),
        ("uint32 piece = 1;", "uint64 piece = 1;"),
        ("returns (GetStatusResponse)", "returns (stream GetStatusResponse)"),
        ("bool pending = 8;", "bool pending = 8; bool more = 9;"),
    ],
)
def test_a_change_of_the_contract_alone_would_be_seen(tmp_path: Path, before: str, after: str) -> None:
    text = (ROOT / PROTO).read_text()
    assert before in text
    changed = tmp_path / PROTO
    changed.parent.mkdir(parents=True)
    changed.write_text(text.replace(before, after, 1))
    assert compiled(tmp_path, tmp_path / "set") != committed()


def test_the_generated_stubs_are_those_of_the_services_methods(contract: descriptor_pb2.FileDescriptorProto) -> None:
    [service] = contract.service
    with grpc.insecure_channel("unix:/nobody") as channel:
        stub = daemon_pb2_grpc.DaemonServiceStub(channel)  # type: ignore[no-untyped-call]
    methods = {method.name for method in service.method}
    assert {name for name in vars(stub) if not name.startswith("_")} == methods
    servicer = daemon_pb2_grpc.DaemonServiceServicer
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


def test_the_typing_stub_names_every_message(contract: descriptor_pb2.FileDescriptorProto) -> None:
    text = (ROOT / PROTO).with_name("daemon_pb2.pyi").read_text()
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
