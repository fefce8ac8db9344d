"""Text without the secrets that may be in it: one function for whatever goes to a log, an error or a wire.

Two ways to know a secret, and `Redactor` goes both: by where it stands (before the `@` of a URL, in the query of a
presigned one, in an `Authorization` header, in S3's account of a signature) and by its value, where this process was
told it. What is no secret stays as it is, so that a message remains of use. Pure; any thread.
"""

import re
from collections.abc import Iterable, Mapping

GONE = "[redacted]"

#: Names of which a value is secret wherever it is given: in a query, a header, an XML element, JSON, an assignment.
_NAMES = (
    "X-Amz-Signature|X-Amz-Credential|X-Amz-Security-Token|X-Goog-Signature|X-Goog-Credential|SignatureProvided|"
    "SecretAccessKey|SessionToken|WebIdentityToken|Authorization|Proxy-Authorization|AWS_SECRET_ACCESS_KEY|"
    "AWS_SESSION_TOKEN|AWS_SECURITY_TOKEN|AWS_CONTAINER_AUTHORIZATION_TOKEN"
)
#: Names that are secret in a query, an XML element or JSON, and elsewhere an everyday word.
_WORDS = "AWSAccessKeyId|Signature|StringToSign|CanonicalRequest|AccessToken|Access_token|Token|Password|sig"
#: In front of a secret itself.
_KIND = r"(?:(?:Bearer|Basic|AWS4-HMAC-SHA256)\s+)?"
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"'<>)}]+)"
_PATTERNS = (
    (re.compile(r"(?<=://)[^/@\s]+@"), ""),
    (re.compile(rf"<({_NAMES}|{_WORDS})>[^<]*", re.IGNORECASE), rf"<\1>{GONE}"),
    (re.compile(rf"([?&](?:{_NAMES}|{_WORDS})=)[^&\s\"'<>]*", re.IGNORECASE), rf"\1{GONE}"),
    (re.compile(rf"([\"'](?:{_WORDS})[\"']\s*:\s*){_VALUE}", re.IGNORECASE), rf"\1{GONE}"),
    (re.compile(rf"(\b(?:{_NAMES})[\"']?\s*[:=]\s*){_KIND}{_VALUE}", re.IGNORECASE), rf"\1{GONE}"),
    (re.compile(r"\b(Credential|Signature)=[^\s,]+"), rf"\1={GONE}"),
    (re.compile(r"\b(A[KS]IA)[A-Z0-9]{16}\b"), r"\1…"),
)
#: Variables of an environment whose values are secrets.
_SECRET_VARIABLE = re.compile(
    r"(?:AWS|GOOGLE|AZURE|FOREBAY)_\w*(?:SECRET|TOKEN|PASSWORD|PASSPHRASE|ACCOUNT_KEY|SSE_\w*KEY)\w*"
)
_PLACE_VARIABLE = re.compile(r"\w*_(?:FILE|URI|URL|PATH)")
#: A shorter value may be part of any text.
_SHORTEST = 8


class Redactor:
    """Takes secrets out of texts: those that stand where secrets stand, and the values that it was given."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def __call__(self, text: str) -> str:
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return self._known.sub(GONE, text) if self._known else text


#: For whoever knows no values.
redacted = Redactor()


def secrets_of(environment: Mapping[str, str]) -> list[str]:
    """The values of an environment's variables that are secrets by their name; never of those that name a file."""
    return [
        value
        for name, value in environment.items()
        if _SECRET_VARIABLE.fullmatch(name) and not _PLACE_VARIABLE.fullmatch(name)
    ]
