"""Opens buckets with obstore, with the credentials that the cloud's own tools use."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from tfpipe.errors import DataError
from tfpipe.storage import failures
from tfpipe.storage.failures import LONGEST_PAUSE_S, RETRIES, RetryConfig
from tfpipe.system.extras import importing

SCHEMES = ("gs", "s3", "az")
REQUIREMENT = "tfpipe[cloud]"
_REGION = "us-east-1"  # Amazon's default, if nothing names another
_SCOPES = tuple(
    f"https://www.googleapis.com/auth/devstorage.{right}" for right in ("full_control", "read_only", "read_write")
)
_LOGIN_GOOGLE = (
    "gs:// needs credentials, and none were found. Log in with `gcloud auth application-default login`, or name a key "
    "file in GOOGLE_APPLICATION_CREDENTIALS; a public bucket can be read with -- --no_auth."
)
_LOGIN_AMAZON = (
    "s3:// needs credentials, and none were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in with "
    "`aws configure`."
)


@dataclass(frozen=True)
class StoreOptions:
    """The options that the user gives for a store. Everything else is found as the cloud's own tools find it.

    Attributes:
        credentials: The rule for requests. "needed": it is an error if there are no credentials. "optional": a bucket
            is then read as a public one is. "none": requests are never signed.
        impersonate: The Google service accounts to act as, as in Beam's `--impersonate_service_account`: the last of
            the names between commas, which the others delegate to.
        endpoint: The address of an S3-compatible store.
        region: The region of Amazon's store.
        access_key_id: The key for Amazon's store.
        secret_access_key: The secret of that key.
        session_token: The session token of a temporary key.
        disable_ssl: Whether requests to Amazon's store use HTTP in place of HTTPS.
        verify: The file with the certificates to trust, or "False" to trust any.
    """

    credentials: Literal["needed", "optional", "none"] = "needed"
    impersonate: str | None = None
    endpoint: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    disable_ssl: bool = False
    verify: str | None = None


@dataclass(frozen=True)
class Bucket:
    """An open bucket."""

    once: Any  # the client of obstore that makes each request once
    patient: Any  # the client that repeats failed requests, for calls that take several


def open_bucket(scheme: str, name: str, options: StoreOptions, retries: RetryConfig = RETRIES) -> Bucket:
    """Opens a bucket, without a request to the store."""
    limits = {
        "connect_timeout": timedelta(seconds=retries.connect_s),
        "read_timeout": timedelta(seconds=retries.read_s),
        "timeout": timedelta(days=1),  # the time for a whole object has no limit
    }
    with importing(f"{scheme}://", "obstore, boto3 and google-auth", REQUIREMENT):
        make = {"gs": _open_google, "s3": _open_amazon, "az": _open_azure}[scheme](name, options, limits)
    patience = {
        "max_retries": retries.attempts - 1,
        "retry_timeout": timedelta(seconds=retries.retry_s),
        "backoff": {
            "init_backoff": timedelta(seconds=retries.first_pause_s),
            "max_backoff": timedelta(seconds=LONGEST_PAUSE_S),
            "base": 2,
        },
    }
    return Bucket(make(retry_config={"max_retries": 0}), make(retry_config=patience))


_Make = Callable[..., Any]
"""Makes the client of a bucket with the argument `retry_config`."""


def _open_google(name: str, options: StoreOptions, client: dict[str, Any]) -> _Make:
    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    provider: Any = None
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        config["base_url"] = emulator if "://" in emulator else f"http://{emulator}"
        client["allow_http"] = config["base_url"].startswith("http://")
        provider = _answer_emulator if options.credentials != "none" else None
    elif options.credentials != "none":
        provider = _find_google_credentials(options)
    if provider is None:
        config["skip_signature"] = True

    make: _Make = GCSStore
    return partial(make, name, config=config, client_options=client, credential_provider=provider)


def _answer_emulator() -> dict[str, Any]:
    """Returns a token for an emulator, which accepts any. Without a token obstore asks this machine for one."""
    return {"token": "emulator", "expires_at": None}


def _find_google_credentials(options: StoreOptions) -> Any:
    import google.auth
    from google.auth import exceptions, impersonated_credentials
    from obstore.auth.google import GoogleCredentialProvider

    try:
        credentials, _ = google.auth.default(scopes=_SCOPES)
        if options.impersonate:
            *delegates, target = options.impersonate.split(",")
            make: Any = impersonated_credentials.Credentials  # without type hints
            credentials = make(credentials, target, _SCOPES, delegates)
    except exceptions.GoogleAuthError as error:
        # google-auth's message differs if a key file is named, but is missing or not valid.
        if "default credentials were not found" not in str(error):
            raise DataError(f"Google's credentials cannot be used: {failures.shorten(str(error))}.") from error
        if options.credentials == "optional":
            return None
        raise DataError(_LOGIN_GOOGLE) from error
    return _Renewed(GoogleCredentialProvider(credentials))


def _open_amazon(name: str, options: StoreOptions, client: dict[str, Any]) -> _Make:
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    try:
        session = boto3.Session(
            aws_access_key_id=options.access_key_id,
            aws_secret_access_key=options.secret_access_key,
            aws_session_token=options.session_token,
            region_name=options.region,
        )
        config: dict[str, Any] = {"region": session.region_name or _REGION}
        found = {"region_name": config["region"], "endpoint_url": options.endpoint, "use_ssl": not options.disable_ssl}
        endpoint = str(session.client("s3", **found).meta.endpoint_url)  # from options, variables and AWS's files
        credentials = None if options.credentials == "none" else session.get_credentials()
    except (BotoCoreError, ValueError) as error:  # a wrong endpoint, or a damaged AWS config file
        raise DataError(f"S3's client refuses its options: {failures.shorten(str(error))}.") from error
    if credentials is None and options.credentials == "needed":
        raise DataError(_LOGIN_AMAZON)
    provider: Any = None
    if credentials is not None:
        provider = _Renewed(Boto3CredentialProvider(session))
    else:
        config["skip_signature"] = True
    if not endpoint.endswith(".amazonaws.com") or options.disable_ssl:  # an S3-compatible store
        config["endpoint"], client["allow_http"] = endpoint, endpoint.startswith("http://")
    else:
        config["region"] = _find_region(session, name, config["region"])
    if options.verify == "False":
        client["allow_invalid_certificates"] = True
    elif options.verify:
        with open(options.verify, "rb") as file:
            client["root_certificate"] = file.read()

    make: _Make = S3Store
    return partial(make, name, config=config, client_options=client, credential_provider=provider)


def _find_region(session: Any, bucket: str, region: str) -> str:
    """Asks Amazon for the region of a bucket, which obstore needs beforehand. This takes no credentials."""
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    config = Config(signature_version=UNSIGNED, connect_timeout=5, read_timeout=5, retries={"total_max_attempts": 1})
    try:
        answer = session.client("s3", region_name=region, config=config).head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response
    except BotoCoreError:
        return region  # the first request says what is wrong
    return str(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region", region))


def _open_azure(name: str, options: StoreOptions, client: dict[str, Any]) -> _Make:
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore

    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT") or os.environ.get("AZURE_ENDPOINT", "")
    client["allow_http"] = endpoint.startswith("http://")
    config: dict[str, Any] = {}
    if options.credentials == "none":
        config["skip_signature"] = True
    elif Path("~/.azure/azureProfile.json").expanduser().exists():
        config["use_azure_cli"] = True  # if no environment variable holds credentials

    def make(**retry: Any) -> Any:
        try:
            return AzureStore(name, config=config, client_options=client, **retry)  # type: ignore[arg-type]
        except (BaseError, ValueError) as error:
            raise DataError(
                f"az://{name} needs the name of its account in AZURE_STORAGE_ACCOUNT_NAME, and credentials in other "
                f"variables AZURE_* or from `az login`. The client says: {failures.shorten(str(error))}."
            ) from error

    return make


class _Renewed:
    """The credentials of a bucket. Every error of the cloud's library becomes a `CredentialsError`."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self.config = getattr(provider, "config", {})

    def __call__(self) -> Any:
        try:
            return self._provider()
        except Exception as error:
            raise failures.CredentialsError(str(error)) from error


@cache
def _get_first_process() -> int:
    """Returns the id of the process that first opened a bucket: this process, or the one that forked it."""
    return os.getpid()


def check_not_forked(url: str) -> None:
    """Refuses a forked process: the threads of obstore do not live on in it, so a request would hang."""
    if _get_first_process() != os.getpid():
        raise DataError(
            f"A forked process cannot read {url}, because it has none of the threads that its parent reads with. Start "
            "it with the method spawn or forkserver."
        )
