"""A very small S3 client on the standard library (Signature Version 4, path style, one request per connection).

It exists so that tests can make buckets and objects without obstore in their own process, which may have to fork.
Signing follows "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)" of the S3 API
reference. Any thread.
"""

import hashlib
import hmac
import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

REGION = "us-east-1"
_TIMEOUT_SECONDS = 30.0


class S3Error(Exception):
    """A request was answered with another status than 2xx: `status`, and the server's text in the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Identity:
    """One set of credentials and what the server lets it do."""

    access_key: str
    secret_key: str = field(repr=False)
    actions: tuple[str, ...]


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def authorization(identity: Identity, method: str, target: str, headers: Mapping[str, str]) -> str:
    """The Authorization header for a request to `target` (encoded path and query) with these lower-case headers."""
    path, _, query = target.partition("?")
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name].strip()}" for name in sorted(headers)]
    canonical = "\n".join([method, path, query, *lines, "", names, headers["x-amz-content-sha256"]])
    moment = headers["x-amz-date"]
    scope = f"{moment[:8]}/{REGION}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{identity.secret_key}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    signature = _hmac(key, f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}").hex()
    credential = f"{identity.access_key}/{scope}"
    return f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"


@dataclass(frozen=True)
class S3Client:
    """Signed requests to one endpoint (`http://host:port`) as one identity. Errors: S3Error, OSError."""

    endpoint: str
    identity: Identity

    def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        """Send one request for an unencoded path such as `/bucket/a key` and return the body of the answer."""
        encoded = urlencode(sorted((query or {}).items()), quote_via=quote, safe="-_.~")
        target = quote(path, safe="/-_.~") + (f"?{encoded}" if encoded else "")
        host = urlsplit(self.endpoint).netloc
        headers = {
            "host": host,
            "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
            "x-amz-date": datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
        }
        signed = {**headers, "authorization": authorization(self.identity, method, target, headers)}
        connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, target, body=body, headers=signed)
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise S3Error(response.status, f"{method} {target}: {response.status} {answer.decode(errors='replace')}")
        return answer

    def list_keys(self, bucket: str, *, prefix: str = "") -> list[str]:
        """All keys below a prefix, sorted."""
        keys: list[str] = []
        query = {"list-type": "2", "prefix": prefix}
        while True:
            page = ElementTree.fromstring(self.request("GET", f"/{bucket}", query=query))
            keys += [element.text or "" for element in page.iterfind("{*}Contents/{*}Key")]
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return sorted(keys)
            query = {**query, "continuation-token": token}
