"""Text that leaves the process holds no secret, and stays readable."""

import pytest

from forebay_core.errors import SourceUnreachable, one_line
from forebay_core.redaction import GONE, Redactor, redacted, secrets_of

SECRET = "hunter2/with+signs=="


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach https://user:hunter2%2Fwith+signs==@host:1/b",
        f"GET https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={SECRET}&X-Amz-Expires=3 failed",
        f"GET https://b/k?a=1&X-Amz-Security-Token={SECRET}",
        f"https://b/k?AWSAccessKeyId=A&Signature={SECRET}",
        f"https://account.blob/k?sv=1&sig={SECRET}",
        f"POST https://sts/?Action=AssumeRoleWithWebIdentity&WebIdentityToken={SECRET}",
        f'headers: {{"authorization": "AWS4-HMAC-SHA256 Credential=A/x, Signature={SECRET}"}}',
        f"Authorization: Bearer {SECRET}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=AK/2026/s3, SignedHeaders=host, Signature={SECRET}",
        f'x-amz-security-token: "{SECRET}"',
        f"<Error><StringToSign>{SECRET}</StringToSign><SignatureProvided>{SECRET}</SignatureProvided></Error>",
        f"<Credentials><SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{SECRET}</SessionToken></Credentials>",
        f'{{"AccessKeyId": "A", "SecretAccessKey": "{SECRET}", "Token": "{SECRET}"}}',
        f"aws_secret_access_key = {SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET} AWS_SESSION_TOKEN={SECRET}",
    ],
)
def test_a_secret_is_taken_out_of_the_place_where_it_stands(text: str) -> None:
    assert "hunter2" not in redacted(text)
    assert "hunter2" not in one_line(SourceUnreachable(text))


def test_an_access_key_is_shortened() -> None:
    assert redacted("the key AKIAIOSFODNN7EXAMPLE is unknown") == "the key AKIA… is unknown"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/year=2024/token=7/part-0.parquet: no such object",
        "file:///data@v1/a@b.parquet has 3 tokens, Signature not needed",
        "the session token is not valid; check AWS_SESSION_TOKEN",
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
        "GET http://127.0.0.1:1/b?list-type=2&prefix=train%2F in 3 ms",
        "token: 5 of 7; password protected",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


def test_values_that_are_known_are_taken_out_wherever_they_stand_but_not_short_ones() -> None:
    redact = Redactor(["hunter2-and-more", "abc"])
    assert redact("it said hunter2-and-more, abc") == f"it said {GONE}, abc"


def test_the_secrets_of_an_environment_are_those_by_name_and_no_places() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "one",
        "AWS_SESSION_TOKEN": "two",
        "AZURE_STORAGE_ACCOUNT_KEY": "three",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/a/file",
        "AWS_ACCESS_KEY_ID": "no secret",
        "PATH": "/bin",
    }
    assert secrets_of(environment) == ["one", "two", "three"]
