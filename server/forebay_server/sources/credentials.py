"""Which credentials a bucket is read with: found once, by the rules of the AWS SDKs, as far as obstore has them.

The first of these that is there: none at all, where that is asked for; keys in the environment; a web identity; a
profile; a container's role; the machine's role, which serves AWS itself alone. obstore fetches those of roles and
renews them five minutes before they expire; those of a profile are handed to it by a `Provider` of ours, which reads
the file, or runs the program, anew.

What is not done here is said with the way round it: signing in by SSO and assuming a role are the AWS command line's,
which hands its credentials over as a `credential_process`.

The invariant: no message and no `origin` holds a credential. Called when a bucket is first named and when its
credentials were refused; a provider is called on obstore's threads.
"""

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from forebay_core.errors import AccessDenied, ConfigurationError, ForebayError
from forebay_server.sources.profiles import DEFAULT, Profile, read_profile

if TYPE_CHECKING:
    from obstore.store import S3Credential

#: Keys in a file carry no time of expiry, but those of a session expire: looked at again this often.
_REREAD = timedelta(minutes=10)
#: Before they expire, and at least between two times: a program may give the same ones to their end.
_AHEAD, _PAUSE = timedelta(minutes=1), timedelta(seconds=10)
#: A program that signs in again may ask a service far away.
_PROGRAM_SECONDS = 60.0
#: What to do where there are none.
HOW = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for anonymous reading,"
    " in the environment of the daemon (the trainer's own, where it started that)"
)
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})


class Provider:
    """Credentials of a profile, as obstore asks for them: before each request from five minutes before they expire.

    They are loaded anew a minute before. `failure` is why the last time gave none.
    """

    def __init__(
        self, load: Callable[[], "S3Credential"], *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._load = load
        self._clock = clock
        self._fresh_until = datetime.min.replace(tzinfo=UTC)
        self._kept: S3Credential | None = None
        self.failure: ForebayError | None = None

    @property
    def expires_at(self) -> datetime | None:
        """When those that were loaded last expire; None: never, or that is not known."""
        return self._kept["expires_at"] if self._kept else None

    def __call__(self) -> "S3Credential":
        now = self._clock()
        if self._kept is None or now >= self._fresh_until:
            self._kept = self._loaded()
            expiry = self._kept["expires_at"]
            self._fresh_until = now + _REREAD / 2 if expiry is None else max(now + _PAUSE, expiry - _AHEAD)
        again = now + _REREAD
        return {**self._kept, "expires_at": min(self._kept["expires_at"] or again, again)}

    def _loaded(self) -> "S3Credential":
        try:
            loaded = self._load()
        except ForebayError as error:
            self.failure = error
            raise
        self.failure = None
        return loaded


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where credentials come from, and what obstore is told to get them."""

    #: For people: "profile 'train'".
    origin: str
    #: obstore's settings besides those of the environment; an empty value takes one of the environment's away.
    settings: Mapping[str, str] = field(default_factory=dict)
    provider: Provider | None = None
    is_anonymous: bool = False
    #: Whether asking again may give others: not for what was in the environment from the start.
    can_change: bool = True


def is_on(environment: Mapping[str, str], name: str) -> bool:
    """Whether a switch is set."""
    return environment.get(name, "").strip().lower() in _TRUE


def profile_of(environment: Mapping[str, str], *, url: str) -> Profile | None:
    """The profile that this environment means, if any. A file that cannot be read is no error where nobody needs it."""
    try:
        return read_profile(environment)
    except ConfigurationError as error:
        if environment.get("AWS_ACCESS_KEY_ID") or is_on(environment, "AWS_SKIP_SIGNATURE"):
            return None
        raise ConfigurationError(f"{url}: {error}") from None


def find(environment: Mapping[str, str], profile: Profile | None, *, url: str, is_aws: bool) -> Credentials:
    """The credentials for `url`, by the environment of this process. `is_aws`: no other service was named.

    Raises `AccessDenied` where there are none, `ConfigurationError` where what is there cannot work: before any
    request, and without a search for a metadata service that is not there.
    """
    if is_on(environment, "AWS_SKIP_SIGNATURE"):
        return Credentials("anonymous reading (AWS_SKIP_SIGNATURE)", is_anonymous=True, can_change=False)
    found = _of_environment(environment, url) or (profile and _of_profile(profile, environment, url))
    found = found or _of_container(environment, url)
    if found:
        return found
    if environment.get("AWS_METADATA_ENDPOINT") or (is_aws and not is_on(environment, "AWS_EC2_METADATA_DISABLED")):
        return Credentials("this machine's role")
    raise AccessDenied(f"{url}: no credentials: {HOW}")


def _of_environment(environment: Mapping[str, str], url: str) -> Credentials | None:
    given = [name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if environment.get(name)]
    if len(given) == 2:
        return Credentials("AWS_ACCESS_KEY_ID", can_change=False)
    if given:
        other = "AWS_SECRET_ACCESS_KEY" if given == ["AWS_ACCESS_KEY_ID"] else "AWS_ACCESS_KEY_ID"
        raise ConfigurationError(f"{url}: {given[0]} is set and {other} is not: set both or none")
    if not environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return None
    if not environment.get("AWS_ROLE_ARN"):
        raise ConfigurationError(f"{url}: AWS_WEB_IDENTITY_TOKEN_FILE is set and AWS_ROLE_ARN is not: set both or none")
    return Credentials("the web identity of AWS_WEB_IDENTITY_TOKEN_FILE")


def _of_profile(profile: Profile, environment: Mapping[str, str], url: str) -> Credentials | None:
    origin = f"profile {profile.name!r}"
    if profile.get("role_arn"):
        return _of_role(profile, origin, url)
    if profile.get("aws_access_key_id"):
        _keys(profile, url)
        return Credentials(origin, provider=Provider(lambda: _keys(read_profile(environment), url)))
    if command := profile.get("credential_process"):
        program = Provider(lambda: _of_program(command, environment, f"{url}: the credential_process of {origin}"))
        return Credentials(f"the credential_process of {origin}", provider=program)
    if profile.get("sso_session") or profile.get("sso_start_url"):
        raise _beyond(url, f"{origin} signs in by SSO", profile.name)
    return None


def _of_role(profile: Profile, origin: str, url: str) -> Credentials:
    if not profile.get("web_identity_token_file"):
        raise _beyond(url, f"{origin} assumes a role", profile.name)
    settings = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": profile.get("web_identity_token_file"),
        "AWS_ROLE_ARN": profile.get("role_arn"),
        "AWS_ROLE_SESSION_NAME": profile.get("role_session_name") or "forebay",
    }
    return Credentials(f"the web identity of {origin}", settings)


def _beyond(url: str, what: str, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{url}: {what}, which the daemon leaves to the AWS command line: name another profile in AWS_PROFILE that has "
        f"credential_process = aws configure export-credentials --profile {name} --format process"
    )


def _keys(profile: Profile | None, url: str) -> "S3Credential":
    profile = profile or Profile(DEFAULT, {})
    key, secret = profile.get("aws_access_key_id"), profile.get("aws_secret_access_key")
    if not key or not secret:
        raise ConfigurationError(
            f"{url}: profile {profile.name!r} has not both aws_access_key_id and aws_secret_access_key; complete it"
        )
    token = profile.get("aws_session_token") or None
    return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _of_program(command: str, environment: Mapping[str, str], what: str) -> "S3Credential":
    """What a `credential_process` prints. Its output is never quoted."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own program, as AWS's files name it; no shell
            shlex.split(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else f"nothing came within {_PROGRAM_SECONDS:.0f} s"
        raise AccessDenied(f"{what} cannot be run ({reason}); run it by hand to see") from None
    if done.returncode:
        raise AccessDenied(f"{what} ended with status {done.returncode}; run it by hand to see why")
    try:
        return _printed(json.loads(done.stdout))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise AccessDenied(f"{what} printed no credentials of Version 1; run it by hand to see") from None


def _printed(value: Mapping[str, Any]) -> "S3Credential":
    if value["Version"] != 1:
        raise ValueError
    expiration = value.get("Expiration")
    return {
        "access_key_id": value["AccessKeyId"],
        "secret_access_key": value["SecretAccessKey"],
        "token": value.get("SessionToken") or None,
        "expires_at": datetime.fromisoformat(expiration).astimezone(UTC) if expiration else None,
    }


def _of_container(environment: Mapping[str, str], url: str) -> Credentials | None:
    if environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        return Credentials("this container's role")
    if not environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        return None
    if not environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        raise ConfigurationError(
            f"{url}: AWS_CONTAINER_CREDENTIALS_FULL_URI is read with AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE alone, "
            "which is not set; set it to a file with the token"
        )
    return Credentials("this container's role")
