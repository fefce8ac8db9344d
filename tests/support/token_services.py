"""The services that give out credentials for a while, on 127.0.0.1: a machine's metadata service (IMDSv2), a
container's, and the token service that takes web identities (STS, over TLS).

They give the keys of `identity`, which a test replaces in mid-run, with a life that is below what obstore renews at, so
that it asks before each request. Every request is on record. Requests are answered on threads of the server.
"""

import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.s3 import Identity

SESSION_TOKEN = "token-of-a-machine"
WEB_TOKEN = "a-web-identity-token"


class TokenServices:
    """The running services, as a context manager. `identity` is whose keys they give; None: they refuse."""

    def __init__(self, identity: Identity, *, life_seconds: float = 120.0, tls_directory: Path | None = None) -> None:
        self.identity: Identity | None = identity
        self.life_seconds = life_seconds
        self.requests: list[str] = []
        self._server = _Server(self)
        if tls_directory is not None:
            self._server.socket = _tls(tls_directory).wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if tls_directory else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="token-services")
        self._thread.start()

    def credentials(self) -> dict[str, str]:
        """As the services give them. No session token: SeaweedFS takes one for a session of its own."""
        assert self.identity is not None
        expiry = datetime.now(UTC) + timedelta(seconds=self.life_seconds)
        return {
            "Code": "Success",
            "AccessKeyId": self.identity.access_key,
            "SecretAccessKey": self.identity.secret_key,
            "Token": "",
            "Expiration": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, services: TokenServices) -> None:
        self.services = services
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no failure of a test."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_PUT(self) -> None:
        """A metadata service first gives a token for its own use."""
        self.server.services.requests.append(f"PUT {self.path}")
        is_token = self.path == "/latest/api/token" and self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
        self._answer(200 if is_token else 404, SESSION_TOKEN)

    def do_GET(self) -> None:
        self.server.services.requests.append(f"GET {self.path}")
        if self.path == "/container":
            allowed = self.headers.get("Authorization") == WEB_TOKEN
        else:
            allowed = self.headers.get("X-aws-ec2-metadata-token") == SESSION_TOKEN
        if not allowed or self.server.services.identity is None:
            self._answer(403, "no")
        elif self.path.endswith("/security-credentials/"):
            self._answer(200, "the-role")
        else:
            self._answer(200, json.dumps(self.server.services.credentials()))

    def do_POST(self) -> None:
        """The token service: AssumeRoleWithWebIdentity."""
        asked = parse_qs(urlsplit(self.path).query)
        self.server.services.requests.append(f"POST {asked.get('Action', [''])[0]} {asked.get('RoleArn', [''])[0]}")
        if asked.get("WebIdentityToken") != [WEB_TOKEN] or self.server.services.identity is None:
            code = "InvalidIdentityToken"
            self._answer(400, f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>")
            return
        given = self.server.services.credentials()
        inside = (
            f"<AccessKeyId>{given['AccessKeyId']}</AccessKeyId><SecretAccessKey>{given['SecretAccessKey']}"
            f"</SecretAccessKey><SessionToken></SessionToken><Expiration>{given['Expiration']}</Expiration>"
        )
        name = "AssumeRoleWithWebIdentity"
        body = f"<{name}Result><Credentials>{inside}</Credentials></{name}Result>"
        self._answer(200, f"<{name}Response>{body}</{name}Response>")

    def _answer(self, status: int, body: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


def _tls(directory: Path) -> ssl.SSLContext:
    """A certificate that nobody has signed but itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = directory / "tls.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
