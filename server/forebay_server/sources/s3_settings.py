"""What a bucket is reached with: endpoint, region, credentials, and the settings of obstore's store and client.

They are those that obstore knows by the names of environment variables, completed by the profile's region and endpoint.
Refused here, before any request, is what would change the URL of a request, end in a panic of obstore's Rust runtime,
or only lead to a search for a metadata service. Pure but for the files of a profile; called when a bucket is first
named, and again when its credentials were refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from obstore import exceptions as obstore_errors
from obstore.store import S3Store

from forebay_core.errors import ConfigurationError
from forebay_server.sources.credentials import Credentials, find, is_on, profile_of
from forebay_server.sources.failures import shown
from forebay_server.sources.profiles import Profile
from forebay_server.sources.remote import ConnectionOptions

_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
#: obstore's limit on a whole request, which cannot be left out.
_NO_LIMIT = timedelta(days=30)
#: That of no bytes at all.
_ZERO_CHECKSUM = "AAAAAAAAAAA="
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")

_STORE_SETTINGS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_REQUEST_PAYER",
    "AWS_S3_EXPRESS",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_UNSIGNED_PAYLOAD",
)
_CLIENT_SETTINGS = (
    "AWS_ALLOW_HTTP",
    "AWS_ALLOW_INVALID_CERTIFICATES",
    "AWS_PROXY_URL",
    "AWS_PROXY_EXCLUDES",
    "AWS_PROXY_CA_CERTIFICATE",
    "AWS_USER_AGENT",
    "AWS_RANDOMIZE_ADDRESSES",
    "AWS_POOL_IDLE_TIMEOUT",
    "AWS_POOL_MAX_IDLE_PER_HOST",
    "AWS_HTTP1_ONLY",
    "AWS_HTTP2_ONLY",
)


@dataclass(frozen=True, slots=True)
class Opening:
    """What one of obstore's stores of a bucket does besides."""

    #: Sends the checksum (CRC-64/NVME) of each body, which a store that knows of them compares with what arrives.
    checksums: bool = False
    #: Sends a checksum that is wrong, to see whether the store compares it.
    wrong_checksum: bool = False
    #: Requests that obstore itself makes again after a failure.
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How one bucket is reached. Made by `settings_of`."""

    bucket: str
    #: The URL of the service.
    endpoint: str
    region: str
    credentials: Credentials
    requester_pays: bool
    #: The environment, completed by the profile.
    values: Mapping[str, str] = field(repr=False)

    @property
    def is_aws(self) -> bool:
        """Whether the service is AWS's own."""
        return f"{urlsplit(self.endpoint).hostname}.".endswith((".amazonaws.com.", ".amazonaws.com.cn."))

    def open(self, options: ConnectionOptions, opening: Opening = Opening()) -> S3Store:
        """obstore's store. Raises `ConfigurationError` for what obstore refuses."""
        found = {**self.values, **self.credentials.settings, "AWS_REGION": self.region}
        store: Any = {name: found[name] for name in _STORE_SETTINGS if found.get(name)}
        client: Any = {name.removeprefix("AWS_").lower(): found[name] for name in _CLIENT_SETTINGS if found.get(name)}
        client["connect_timeout"] = timedelta(seconds=options.connect_timeout_seconds)
        client["read_timeout"] = timedelta(seconds=options.stall_timeout_seconds)
        client["timeout"] = _NO_LIMIT
        if opening.checksums:
            store["AWS_CHECKSUM_ALGORITHM"] = "CRC64NVME"
        if opening.wrong_checksum:
            client["default_headers"] = {"x-amz-checksum-crc64nvme": _ZERO_CHECKSUM}
        provider: Any = self.credentials.provider
        retries: Any = {"max_retries": opening.repeats}
        try:
            return S3Store(
                self.bucket, config=store, client_options=client, retry_config=retries, credential_provider=provider
            )
        except (obstore_errors.BaseError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(f"s3://{self.bucket}: {shown(reason)}; check the AWS_ settings") from error


def settings_of(bucket: str, environment: Mapping[str, str]) -> Settings:
    """The settings of a bucket in this environment. Raises `ConfigurationError` or `AccessDenied`."""
    url = f"s3://{shown(bucket)}"
    _check_bucket(bucket)
    _check_lines(environment, url)
    profile = profile_of(environment, url=url)
    values = _completed(environment, profile)
    _check_lines(values, url)
    given = _endpoint_setting(values)
    region = values.get("AWS_REGION") or values.get("AWS_DEFAULT_REGION") or "us-east-1"
    return Settings(
        bucket=bucket,
        endpoint=given or f"https://s3.{region}.amazonaws.com",
        region=region,
        credentials=find(values, profile, url=url, is_aws=not given),
        requester_pays=is_on(values, "AWS_REQUEST_PAYER") or values.get("AWS_REQUEST_PAYER", "").lower() == "requester",
        values=values,
    )


def _completed(environment: Mapping[str, str], profile: Profile | None) -> dict[str, str]:
    """The environment with the profile's region and endpoint where it has none of its own."""
    values = dict(environment)
    if profile is None:
        return values
    if not (values.get("AWS_REGION") or values.get("AWS_DEFAULT_REGION")) and profile.get("region"):
        values["AWS_REGION"] = profile.get("region")
    if not any(values.get(name) for name in _ENDPOINT_VARIABLES) and profile.get("endpoint_url"):
        values["AWS_ENDPOINT_URL"] = profile.get("endpoint_url")
    return values


def _check_bucket(bucket: str) -> None:
    if not _BUCKET.fullmatch(bucket):
        raise ConfigurationError(
            f"{shown(bucket)!r} is not the name of a bucket: letters, digits, '.', '-' and '_' are"
        )


def _check_lines(values: Mapping[str, str], url: str) -> None:
    for name in (*_STORE_SETTINGS, *_CLIENT_SETTINGS):
        if not values.get(name, "").isprintable():
            raise ConfigurationError(f"{url}: {name} holds a line break or another control character; remove it")


def _endpoint_setting(values: Mapping[str, str]) -> str:
    for name in _ENDPOINT_VARIABLES:
        if endpoint := values.get(name):
            _check_endpoint(name, endpoint)
            return endpoint.rstrip("/")
    return ""


def _check_endpoint(name: str, endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in endpoint):
        raise ConfigurationError(f"{name}={shown(endpoint)!r} is not a URL such as https://host:port")
