"""What went wrong at a store, as one of forebay's typed errors.

obstore tells the kinds of failure apart only in part: the HTTP status and S3's error code are in the text of its
exceptions alone. This module reads them there, and nowhere else does anyone look into such a text. Pure; any thread.

The invariant: every message is one line that names the URL and the setting to look at, and never holds credentials.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from obstore import exceptions as obstore_errors

from forebay_core.errors import (
    AccessDenied,
    BadObject,
    ConfigurationError,
    ForebayError,
    ObjectChanged,
    SourceError,
    SourceNotFound,
    SourceUnreachable,
    one_line,
)

_STATUS = re.compile(r"^\s+status: (\d{3}),$", re.MULTILINE)
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_ASKED = re.compile(r"Error performing \w+ (\S+) in ")
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")

#: HTTP statuses that a later attempt may change.
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
#: Kinds of obstore's HttpError that a later attempt may change.
_TRANSIENT_KINDS = frozenset({"Connect", "Request", "Timeout", "Interrupted", "Decode"})
#: Marks of what no later attempt changes although its kind looks so.
_HOPELESS = ("InvalidContentType", "certificate", "Parse(")

_KEY_SETTINGS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
#: S3's error codes of refused credentials: what is wrong, and what to set.
_REFUSED = {
    "InvalidAccessKeyId": "it does not know the access key; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the signature does not match; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": f"the credentials have expired; renew {_KEY_SETTINGS} and AWS_SESSION_TOKEN",
    "TokenRefreshRequired": "the session token has expired; renew AWS_SESSION_TOKEN",
    "InvalidToken": "the session token is not valid; check AWS_SESSION_TOKEN",
    "RequestTimeTooSkewed": "this machine's clock is off; set it right",
}
_WRONG_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"}
)


class ShortBody(Exception):
    """Fewer bytes came than the range holds: a transport's fault until it happens at every attempt."""


#: What a store raises when it is the store or the data that fails, and not this program.
STORE_FAILURES = (ForebayError, ShortBody, obstore_errors.BaseError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What obstore's text says: the URL asked, the HTTP status (0: none came), S3's error code, its own kind of
    transport error, and its account of the cause, without the lines that quote names of objects."""

    asked: str
    status: int
    code: str
    kind: str
    cause: str
    summary: str

    def mentions(self, *marks: str) -> bool:
        return any(mark in self.cause for mark in marks)


def _read(error: BaseException) -> _Answer:
    text = str(error)
    _, _, account = text.partition("Debug source:")
    status, code, kind, asked = (p.search(text) for p in (_STATUS, _CODE, _KIND, _ASKED))
    quotes_no_name = (line for line in account.splitlines() if "://" not in line and "path: " not in line)
    return _Answer(
        asked=asked[1] if asked else "",
        status=int(status[1]) if status else 0,
        code=code[1] if code else "",
        kind=kind[1] if kind else "",
        cause="\n".join(quotes_no_name),
        summary=text.partition("\n")[0],
    )


def is_transient(error: BaseException) -> bool:
    """True where another attempt at the same request may succeed."""
    if isinstance(error, ShortBody):
        return True
    if not isinstance(error, obstore_errors.BaseError):
        return False
    answer = _read(error)
    if answer.status:
        return answer.status in _TRANSIENT_STATUSES or answer.code in ("RequestTimeout", "SlowDown")
    if answer.mentions(*_HOPELESS):
        return False
    return answer.kind in _TRANSIENT_KINDS or answer.mentions("UnexpectedRange")


def classify(error: Exception, *, url: str, endpoint: str | None) -> ForebayError:
    """The typed error for what a store raised while `url` was read through `endpoint` (None: the scheme's own)."""
    if isinstance(error, ForebayError):
        return error
    url = shown(url)
    if isinstance(error, ShortBody):
        return BadObject(f"{url}: {error}; is it being rewritten, or is a proxy in between cutting answers short?")
    if isinstance(error, obstore_errors.InvalidPathError) or type(error) is ValueError:
        return _unusable_name(error, url)
    if url.startswith("file:") and isinstance(error, OSError):
        return _local(error, url)
    return _remote(_read(error), error, url=url, endpoint=endpoint)


def naming(error: ForebayError, *, key: str, url: str) -> ForebayError:
    """The error of a format, which knows an object by its key alone, as one that names the object's URL."""
    message, url, quoted = one_line(error), shown(url), repr(key)
    if url in message:
        return error
    return type(error)(message.replace(quoted, url, 1) if quoted in message else f"{url}: {message}")


def shown(text: str) -> str:
    """The text as a message may quote it: on one line, and without the user:password@ of any URL in it."""
    plain = _USER_INFO.sub("", text)
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in plain)


def _at(endpoint: str | None) -> str:
    return shown(endpoint) if endpoint else "the store"


def _remote(answer: _Answer, error: Exception, *, url: str, endpoint: str | None) -> ForebayError:
    at = _at(endpoint)
    if isinstance(error, obstore_errors.PreconditionError):
        return ObjectChanged(f"{url} is not the object that the manifest names any more; open the dataset again")
    if endpoint and answer.asked and not _is_of_store(answer.asked, url, endpoint):
        return AccessDenied(
            f"{url}: no credentials: AWS_ACCESS_KEY_ID is not set, and {urlsplit(answer.asked).hostname}, which would "
            f"give those of a role, does not; set {_KEY_SETTINGS}, or AWS_SKIP_SIGNATURE=true for anonymous reading"
        )
    if answer.status or isinstance(error, FileNotFoundError):
        return _status(answer, error, url=url, at=at)
    return _transport(answer, url=url, at=at)


def _is_of_store(asked: str, url: str, endpoint: str) -> bool:
    """False for a request for credentials, which goes to another host and names no bucket."""
    return urlsplit(endpoint).netloc in asked or urlsplit(url).netloc in asked


def _status(answer: _Answer, error: Exception, *, url: str, at: str) -> ForebayError:
    status, code = answer.status, answer.code
    if code in _REFUSED:
        return AccessDenied(f"{url}: {at} refuses the credentials: {_REFUSED[code]}")
    if code in _WRONG_REGION or status in (301, 307):
        return _wrong_region(url, at)
    if status in (401, 403):
        return AccessDenied(
            f"{url}: {at} denies access ({code or status}): the credentials lack the right to list and read it; "
            f"check its policy, {_KEY_SETTINGS}"
        )
    if code == "NoSuchBucket":
        bucket = urlsplit(url).netloc
        return SourceNotFound(f"{url}: {at} has no bucket {bucket!r}; check its name and AWS_ENDPOINT_URL")
    if status == 404 or isinstance(error, FileNotFoundError):
        hint = "" if code else f", and {at} did not answer as S3 does; check AWS_ENDPOINT_URL"
        return SourceNotFound(f"{url}: no such object{hint}")
    if status == 416:
        return ObjectChanged(f"{url} is shorter than the manifest says; open the dataset again")
    if status in _TRANSIENT_STATUSES:
        return SourceUnreachable(f"{url}: {at} keeps answering {status} {code}".rstrip() + "; try again later")
    return SourceUnreachable(
        f"{url}: {at} answers {status} {code}".rstrip() + "; check AWS_ENDPOINT_URL and AWS_REGION"
    )


def _transport(answer: _Answer, *, url: str, at: str) -> ForebayError:
    if answer.mentions("BadScheme"):
        return ConfigurationError(f"{url}: {at} is not https: set AWS_ALLOW_HTTP=true if that is meant")
    if answer.mentions("BareRedirect"):
        return _wrong_region(url, at)
    if answer.mentions("UnexpectedRange"):
        return BadObject(f"{url}: {at} sends other bytes than were asked for; is it being rewritten?")
    if answer.mentions("NotPartial", "InvalidListResponse", "InvalidListRequest"):
        return SourceUnreachable(f"{url}: {at} does not answer as S3 does (a login page?); check AWS_ENDPOINT_URL")
    return SourceUnreachable(f"{url}: cannot reach {at}: {_reason(answer)}")


def _reason(answer: _Answer) -> str:
    if answer.mentions("InvalidContentType"):
        return "it does not speak TLS; check http:// or https:// in AWS_ENDPOINT_URL"
    if answer.mentions("Parse("):
        return "it does not speak HTTP; check http:// or https:// and the port in AWS_ENDPOINT_URL"
    if answer.mentions("certificate"):
        return "its certificate is not trusted; check AWS_ENDPOINT_URL, or set AWS_ALLOW_INVALID_CERTIFICATES=true"
    if answer.mentions("ConnectionRefused"):
        return "connection refused; check AWS_ENDPOINT_URL and that the store runs"
    if answer.mentions("dns error"):
        return "its name cannot be resolved; check AWS_ENDPOINT_URL and AWS_REGION"
    if answer.kind == "Timeout" or answer.mentions("TimedOut"):
        return "it does not answer in time; check AWS_ENDPOINT_URL and the network"
    if answer.kind:
        return "the connection broke; check the network"
    return shown(answer.summary)[:200] or "an unknown failure"


def _wrong_region(url: str, at: str) -> ConfigurationError:
    return ConfigurationError(f"{url}: {at} serves another region; set AWS_REGION to the bucket's")


def _unusable_name(error: Exception, url: str) -> BadObject:
    reason = " ".join(str(error).partition("\n\nDebug")[0].split())
    return BadObject(
        f"{url}: an object's name cannot be used ({shown(reason)}); rename it, or name the others in a list"
    )


def _local(error: OSError, url: str) -> SourceError:
    if isinstance(error.filename, str) and error.filename.startswith("/"):
        url = shown(f"file://{error.filename}")
    if isinstance(error, PermissionError):
        return AccessDenied(f"{url}: the daemon may not read it; check its owner and mode")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return SourceNotFound(f"{url}: no such file or directory")
    return SourceUnreachable(f"{url}: cannot be read: {error.strerror or error}")
