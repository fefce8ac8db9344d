"""Where HTTP is served, and by which names that place may be called."""

import pytest

from forebay_core.errors import ConfigurationError
from forebay_server.web.address import HttpAddress


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback", "url"),
    [
        ("127.0.0.1:9461", "127.0.0.1", 9461, True, "http://127.0.0.1:9461/"),
        ("localhost:0", "127.0.0.1", 0, True, "http://127.0.0.1:0/"),
        ("[::1]:80", "::1", 80, True, "http://[::1]:80/"),
        (":9461", "", 9461, False, "http://localhost:9461/"),
        ("0.0.0.0:9461", "0.0.0.0", 9461, False, "http://localhost:9461/"),
        ("[::]:9461", "::", 9461, False, "http://localhost:9461/"),
        ("10.1.2.3:9461", "10.1.2.3", 9461, False, "http://10.1.2.3:9461/"),
    ],
)
def test_an_address_is_a_numeric_host_and_a_port(text: str, host: str, port: int, is_loopback: bool, url: str) -> None:
    address = HttpAddress.parse(text)
    assert address == HttpAddress(host, port)
    assert (address.is_loopback, address.url) == (is_loopback, url)


@pytest.mark.parametrize(
    "text", ["", "9461", "127.0.0.1", "node17:9461", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80", "[]:80", "[x]:80"]
)
def test_what_is_no_address_is_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:9461.*FOREBAY_HTTP"):
        HttpAddress.parse(text)


@pytest.mark.parametrize(
    ("header", "is_called"),
    [
        ("127.0.0.1:9461", True),
        ("127.0.0.1", True),
        ("localhost:8080", True),
        ("LOCALHOST.", True),
        ("[::1]:9461", True),
        (None, False),
        ("", False),
        ("evil.example:9461", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1:9461", False),
        ("localhost@evil.example", False),
        ("localhost:9461:1", False),
    ],
)
def test_a_loopback_address_is_called_by_loopback_names_alone(header: str | None, is_called: bool) -> None:
    assert HttpAddress("127.0.0.1", 9461).is_called(header) == is_called
    assert HttpAddress("", 9461).is_called(header), "an address that others reach may have any name"
