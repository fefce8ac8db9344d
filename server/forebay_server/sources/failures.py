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
from forebay_core.redaction import redacted
from forebay_server.sources.credentials import HOW

_STATUS = re.compile(r"^\s+status: (\d{3}),$", re.MULTILINE)
_KIND = re.compile(r"HttpError \{\s+kind: (\w+),")
#: In an answer's body, or of one of the keys that were deleted by one request.
_CODE = re.compile(r'<Code>([\w.]+)</Code>|^\s+code: "([\w.]+)",$', re.MULTILINE)
_ASKED = re.compile(r"Error performing (\w+) (\S+) in ")
#: Where S3 says which region a bucket is in.
_REGION = re.compile(r"<Region>([a-z0-9-]+)</Region>|<Endpoint>[^<]*?\bs3[.-]([a-z]{2}(?:-[a-z]+)+-\d)\.")

#: For how many seconds a store asks to be left alone. obstore shows no headers, so only what a body says is seen.
_RETRY_AFTER = re.compile(r"retry[-_ ]?after\W{1,4}(\d{1,6})\b", re.IGNORECASE)

#: HTTP statuses that ask for fewer requests.
_THROTTLES = frozenset({429, 503})
#: HTTP statuses that a later attempt may change.
_TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
#: S3's error codes for a body that is not what its checksum says.
DAMAGED_ON_THE_WAY = frozenset({"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"})
#: S3's error codes of the same kind, which also come with other statuses, and in answers of status 200.
_TRANSIENT_CODES = frozenset(
    {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "ConditionalRequestConflict"}
    | DAMAGED_ON_THE_WAY
)
#: Kinds of obstore's HttpError that a later attempt may change.
_TRANSIENT_KINDS = frozenset({"Connect", "Request", "Timeout", "Interrupted", "Decode"})
#: Marks of what no later attempt changes although its kind looks so.
_HOPELESS = ("InvalidContentType", "certificate", "Parse(")

#: Marks of an answer that does not keep to the protocol.
_ODD = ("NotPartial", "InvalidListResponse", "InvalidListRequest", "MissingEtag", "InvalidMultipartResponse")

#: Which right a request takes, by its method.
_NEEDED = {"PUT": "to write it: that takes s3:PutObject", "DELETE": "to delete it: that takes s3:DeleteObject"}
_NEEDED["POST"] = _NEEDED["PUT"]
_NEEDED_TO_READ = "to read it: that takes s3:GetObject (and s3:ListBucket, to be told where it is missing)"
#: How credentials are named that came in the environment of the daemon.
_OF_ENVIRONMENT = "AWS_ACCESS_KEY_ID"
#: S3's error codes of refused credentials: what is wrong, and where to look if they came in the environment.
_REFUSED = {
    "InvalidAccessKeyId": ("it does not know the access key", "check the daemon's AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": ("the signature does not match", "check the daemon's AWS_SECRET_ACCESS_KEY"),
    "ExpiredToken": ("they have expired", "set new ones in the daemon's environment, with AWS_SESSION_TOKEN"),
    "TokenRefreshRequired": ("they have expired", "set new ones in the daemon's environment, with AWS_SESSION_TOKEN"),
    "InvalidToken": ("the session token is not valid", "check the daemon's AWS_SESSION_TOKEN"),
}
_WRONG_REGION = frozenset(
    {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException"}
)


class ShortBody(Exception):
    """Fewer bytes came than the range holds: a transport's fault until it happens at every attempt."""


@dataclass(frozen=True, slots=True)
class Throttle:
    """A store asked for fewer requests; `retry_after_seconds` where it said for how long to send none."""

    retry_after_seconds: float | None


#: What a store raises when it is the store or the data that fails, and not this program.
STORE_FAILURES = (ForebayError, ShortBody, obstore_errors.BaseError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What obstore's text says: the method and the URL asked, the HTTP status (0: none came), S3's error code, its own
    kind of transport error, and its account of the cause, without the lines that quote names of objects."""

    method: str
    asked: str
    status: int
    code: str
    kind: str
    cause: str
    summary: str
    #: The region that the store names; empty: none.
    region: str

    def mentions(self, *marks: str) -> bool:
        return any(mark in self.cause for mark in marks)


def _read(error: BaseException) -> _Answer:
    text = str(error)
    _, _, account = text.partition("Debug source:")
    status, code, kind, asked = (p.search(text) for p in (_STATUS, _CODE, _KIND, _ASKED))
    region = _REGION.search(text)
    quotes_no_name = (line for line in account.splitlines() if "://" not in line and "path: " not in line)
    return _Answer(
        method=asked[1] if asked else "DELETE" if "DeleteFailed" in account else "",
        asked=asked[2] if asked else "",
        status=int(status[1]) if status else 0,
        code=(code[1] or code[2]) if code else "",
        kind=kind[1] if kind else "",
        cause="\n".join(quotes_no_name),
        summary=text.partition("\n")[0],
        region=(region[1] or region[2]) if region else "",
    )


def is_transient(error: BaseException) -> bool:
    """True where another attempt at the same request may succeed."""
    if isinstance(error, ShortBody):
        return True
    if not isinstance(error, obstore_errors.BaseError):
        return False
    answer = _read(error)
    if answer.status:
        return answer.status in _TRANSIENT_STATUSES or answer.code in _TRANSIENT_CODES
    if answer.code in _TRANSIENT_CODES:
        return True
    if answer.mentions(*_HOPELESS):
        return False
    return answer.kind in _TRANSIENT_KINDS or answer.mentions("UnexpectedRange")


def is_odd(error: BaseException) -> bool:
    """True for an answer that is not S3's: of a wrong endpoint each time, of a proxy in between once in a while."""
    if isinstance(error, SourceUnreachable):
        return True
    return isinstance(error, obstore_errors.BaseError) and _read(error).mentions(*_ODD)


def is_bare_redirect(error: BaseException) -> bool:
    """True for a redirect of which obstore shows neither headers nor body: S3's answer for a bucket elsewhere."""
    return isinstance(error, obstore_errors.BaseError) and _read(error).mentions("BareRedirect")


def is_refusal(error: BaseException) -> bool:
    """True where the store refuses the credentials themselves, so that others might do."""
    return isinstance(error, obstore_errors.BaseError) and _read(error).code in _REFUSED


def throttle_of(error: BaseException) -> Throttle | None:
    """What a store that asks for fewer requests said; None for any other failure."""
    if not isinstance(error, obstore_errors.BaseError):
        return None
    answer = _read(error)
    if answer.status not in _THROTTLES and answer.code != "SlowDown":
        return None
    asked = _RETRY_AFTER.search(str(error))
    return Throttle(float(asked[1]) if asked else None)


def store_code(error: BaseException) -> str:
    """S3's own code for what went wrong, such as `NoSuchKey`; empty where the answer holds none."""
    return _read(error).code


def is_stall(error: BaseException) -> bool:
    """True where no byte came for as long as is waited for one."""
    return code_of(error) == "timeout"


def code_of(error: BaseException) -> str:
    """What came of a request that failed, in a word for counters: see `RemoteCounters.answers`."""
    if isinstance(error, ShortBody):
        return "short"
    if isinstance(error, ObjectChanged | obstore_errors.PreconditionError):
        return "changed"
    if not isinstance(error, obstore_errors.BaseError):
        return "local"
    answer = _read(error)
    if answer.status:
        return str(answer.status)
    if answer.kind == "Timeout" or answer.mentions("TimedOut"):
        return "timeout"
    return "connect" if answer.kind == "Connect" else "broken"


def says_changed(error: BaseException) -> bool:
    """True where a store refuses to read because the object is not the one that was asked for any more."""
    return isinstance(error, obstore_errors.PreconditionError) or (
        isinstance(error, obstore_errors.BaseError) and _read(error).status == 416
    )


def changed(url: str, *, was: str, now: str) -> ObjectChanged:
    """An object that has another version than the manifest names; `now` is empty where that cannot be known."""
    present = f"{shown(now)} now" if now else "another one now, or gone"
    return ObjectChanged(
        f"{shown(url)} has changed since it was listed: it was version {shown(was)}, it is {present};"
        " open the dataset again"
    )


def classify(error: Exception, *, url: str, endpoint: str | None, who: str = "") -> ForebayError:
    """The typed error for what a store raised while `url` was read through `endpoint` (None: the scheme's own) with the
    credentials of `who`."""
    if isinstance(error, ForebayError):
        return error
    url = shown(url)
    if isinstance(error, ShortBody):
        return BadObject(f"{url}: {error}; is it being rewritten, or is a proxy in between cutting answers short?")
    if isinstance(error, obstore_errors.InvalidPathError) or type(error) is ValueError:
        return _unusable_name(error, url)
    if url.startswith("file:") and isinstance(error, OSError):
        return _local(error, url)
    return _remote(_read(error), error, url=url, endpoint=endpoint, who=who or _OF_ENVIRONMENT)


def naming(error: ForebayError, *, key: str, url: str) -> ForebayError:
    """The error of a format, which knows an object by its key alone, as one that names the object's URL."""
    message, url, quoted = one_line(error), shown(url), repr(key)
    if url in message:
        return error
    return type(error)(message.replace(quoted, url, 1) if quoted in message else f"{url}: {message}")


def shown(text: str) -> str:
    """The text as a message may quote it: on one line, and without secrets."""
    plain = redacted(text)
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in plain)


def _at(endpoint: str | None) -> str:
    return shown(endpoint) if endpoint else "the store"


def _remote(answer: _Answer, error: Exception, *, url: str, endpoint: str | None, who: str) -> ForebayError:
    at = _at(endpoint)
    if isinstance(error, obstore_errors.PreconditionError):
        return ObjectChanged(f"{url} is not the object that the manifest names any more; open the dataset again")
    if endpoint and answer.asked and not _is_of_store(answer.asked, url, endpoint):
        return _no_credentials(answer, url=url, who=who)
    if answer.status or answer.code or isinstance(error, FileNotFoundError):
        return _status(answer, error, url=url, at=at, who=who)
    return _transport(answer, url=url, at=at)


def _no_credentials(answer: _Answer, *, url: str, who: str) -> AccessDenied:
    """A service that gives out credentials gave none."""
    service = urlsplit(answer.asked).hostname or "the token service"
    said = f"answers {answer.status} {answer.code}".rstrip() if answer.status else "gives no answer"
    return AccessDenied(f"{url}: no credentials: {service}, asked for those of {who}, {said}; {HOW}")


def _is_of_store(asked: str, url: str, endpoint: str) -> bool:
    """False for a request for credentials, which goes to another host and names no bucket."""
    return urlsplit(endpoint).netloc in asked or urlsplit(url).netloc in asked


def _status(answer: _Answer, error: Exception, *, url: str, at: str, who: str) -> ForebayError:
    status, code = answer.status, answer.code
    if code in _REFUSED:
        wrong, settings = _REFUSED[code]
        what_to_do = settings if who == _OF_ENVIRONMENT else f"renew or correct {who}"
        return AccessDenied(f"{url}: {at} refuses the credentials: {wrong}; {what_to_do}")
    if code == "RequestTimeTooSkewed":
        return AccessDenied(f"{url}: {at} refuses the request: this machine's clock is off; set it right (NTP)")
    if code in _WRONG_REGION or status in (301, 307):
        return _wrong_region(url, at, answer.region)
    if code == "InvalidObjectState":
        return AccessDenied(f"{url}: the object is archived and cannot be read; restore it from its storage class")
    if code.startswith("KMS."):
        return AccessDenied(f"{url}: {at} cannot use the key that encrypts it ({code}); check kms:Decrypt and the key")
    if status in (401, 403) or code == "AccessDenied":
        return _denied(answer, url=url, at=at, who=who)
    if code == "NoSuchBucket":
        bucket = urlsplit(url).netloc
        return SourceNotFound(f"{url}: {at} has no bucket {bucket!r}; check its name and AWS_ENDPOINT_URL")
    if status == 404 or isinstance(error, FileNotFoundError):
        hint = "; check the name" if code else f", and {at} did not answer as S3 does; check AWS_ENDPOINT_URL"
        return SourceNotFound(f"{url}: no such object{hint}")
    if status == 416:
        return ObjectChanged(f"{url} is shorter than the manifest says; open the dataset again")
    if status in _TRANSIENT_STATUSES or code in _TRANSIENT_CODES:
        said = f"{status or ''} {code}".strip()
        return SourceUnreachable(f"{url}: {at} keeps answering {said}; try again later")
    return SourceUnreachable(
        f"{url}: {at} answers {status} {code}".rstrip() + "; check AWS_ENDPOINT_URL and AWS_REGION"
    )


def _denied(answer: _Answer, *, url: str, at: str, who: str) -> AccessDenied:
    said = answer.code or answer.status
    if who.startswith("anonymous"):
        done = "written" if answer.method in _NEEDED else "read"
        return AccessDenied(
            f"{url}: {at} does not let it be {done} anonymously ({said}); set credentials in place of "
            "AWS_SKIP_SIGNATURE"
        )
    if "list-type=" in answer.asked:
        needed = "to list it: that takes s3:ListBucket"
    else:
        needed = _NEEDED.get(answer.method, _NEEDED_TO_READ)
    return AccessDenied(
        f"{url}: {at} denies access ({said}): the credentials of {who} lack the right {needed}; check their policy and "
        "the bucket's; if the requester pays, set AWS_REQUEST_PAYER=true"
    )


def _transport(answer: _Answer, *, url: str, at: str) -> ForebayError:
    if answer.mentions("BadScheme"):
        return ConfigurationError(f"{url}: {at} is not https: set AWS_ALLOW_HTTP=true if that is meant")
    if answer.mentions("BareRedirect"):
        return _wrong_region(url, at, answer.region)
    if answer.mentions("UnexpectedRange"):
        return BadObject(f"{url}: {at} sends other bytes than were asked for; is it being rewritten?")
    if answer.mentions(*_ODD):
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


def wrong_region(url: str, endpoint: str, region: str) -> ConfigurationError:
    """The error for a bucket that is in `region`, and not where `endpoint` serves."""
    return _wrong_region(shown(url), _at(endpoint), shown(region))


def _wrong_region(url: str, at: str, region: str) -> ConfigurationError:
    if region:
        return ConfigurationError(
            f"{url}: {at} serves another region: the bucket is in {region}; set AWS_REGION={region}"
        )
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
        return SourceNotFound(f"{url}: no such file or directory; check the path")
    return SourceUnreachable(f"{url}: cannot be read: {error.strerror or error}; check its disk")
