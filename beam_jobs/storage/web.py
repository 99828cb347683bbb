"""Images on the web, by urllib3. A URL in a table is not trusted, so there are limits on all that a server can do.

- An image has a largest size and a longest time, however slowly its bytes come.
- A redirect leads to a few other places, each of which is checked.
- A host of a private network is refused, whatever name it has: a table must not reach what only this machine can reach.
- A host gets few requests at once, and those that it cannot answer now are repeated with growing pauses.

The job goes on without an image that cannot be had.
"""

import ipaddress
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import urllib3
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.retry import with_exponential_backoff
from urllib3.connection import HTTPConnection, HTTPSConnection

from tfpipe._version import __version__
from tfpipe.errors import ConfigError
from tfpipe.storage.failures import shorten
from tfpipe.storage.file_store import FileStore

_REPEATED = (408, 429, 500, 502, 503, 504)  # a server that is busy or has a passing fault
_PIECE_BYTES = 2**16


@dataclass(frozen=True)
class WebLimits:
    """The limits on one image.

    Attributes:
        max_bytes: The largest size.
        total_s: The seconds for all of its bytes, once the server has begun to answer.
        connect_s: The seconds to connect.
        silent_s: The seconds for which an open connection may be silent.
        redirects: The number of redirects that are followed.
        attempts: The attempts before an image is given up.
        first_pause_s: The seconds before the second attempt; each pause is twice as long as the one before.
        longest_pause_s: The seconds that a server may ask to be left alone. It is asked sooner if it wants longer.
    """

    max_bytes: int = 256 * 2**20
    total_s: float = 60.0
    connect_s: float = 5.0
    silent_s: float = 15.0
    redirects: int = 5
    attempts: int = 4
    first_pause_s: float = 0.5
    longest_pause_s: float = 20.0


LIMITS = WebLimits()


class WebOptions(PipelineOptions):  # type: ignore[misc]  # Beam has no types
    """The options of the web, which travel to workers among those of the other stores."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument("--allow_private_hosts", action="store_true")
        parser.add_argument("--requests_per_host", type=int, default=4)


class WebStore(FileStore):
    """A `FileStore` for `http://` and `https://` that can only be read; `FileStore` describes the methods.

    Args:
        options: `WebOptions`.
        limits: The limits on one image.
    """

    def __init__(self, options: WebOptions, limits: WebLimits = LIMITS) -> None:
        self._limits = limits
        self._pools = urllib3.PoolManager(
            num_pools=100,
            maxsize=options.requests_per_host,
            block=True,  # a request waits until the host has answered others
            headers={
                "User-Agent": f"tfpipe/{__version__}",
                "Accept": "image/*,*/*;q=0.5",
                "Accept-Encoding": "identity",
            },
            timeout=urllib3.Timeout(connect=limits.connect_s, read=limits.silent_s),
            retries=_Retry(
                limits.attempts - 1,
                redirect=False,
                status_forcelist=_REPEATED,
                allowed_methods=["GET"],
                backoff_factor=limits.first_pause_s,
                backoff_max=limits.longest_pause_s,
                raise_on_status=False,
            ),
        )
        if not options.allow_private_hosts:
            self._pools.pool_classes_by_scheme = {"http": _PublicHttp, "https": _PublicHttps}
        self._read_again = with_exponential_backoff(
            num_retries=limits.attempts - 1,
            initial_delay_secs=limits.first_pause_s,
            max_delay_secs=limits.longest_pause_s,
            logger=_ignore_warning,
            retry_filter=lambda error: isinstance(error, _BrokenBody),
        )(self._read_once)

    def check(self, url: str) -> None:
        """Refuses an input or an output on the web: only the images of a table may be there."""
        raise ConfigError(
            f"Only the images that a table names may be on the web, got {url}. Download a table or an archive first."
        )

    def read(self, url: str, offset: int = 0, size: int | None = None) -> bytes:
        """Implements `FileStore.read`, for whole files only."""
        if offset or size is not None:
            self._refuse(url)
        try:
            data: bytes = self._read_again(url)
        except _PrivateHostError as error:
            raise OSError(str(error)) from error
        except ValueError as error:  # of a host that can be no name
            raise OSError(f"not a URL that can be fetched ({shorten(str(error))})") from error
        except urllib3.exceptions.HTTPError as error:
            raise OSError(_explain(error)) from error
        return data

    def _read_once(self, url: str) -> bytes:
        """Reads an image, after at most `redirects` redirects."""
        for _ in range(self._limits.redirects + 1):
            if urlsplit(url).scheme not in ("http", "https"):
                raise OSError(f"is redirected to {url}, which is not on the web")
            response = self._pools.request("GET", url, preload_content=False, redirect=False)
            try:
                target = response.get_redirect_location()
                if not target:
                    return self._read_body(response)
            finally:
                response.close()  # what it would still send is not wanted
            url = urljoin(url, target)
        raise OSError(f"is redirected more than {self._limits.redirects} times")

    def _read_body(self, response: Any) -> bytes:
        if response.status != 200:
            raise OSError(f"HTTP status {response.status}")
        limits, until = self._limits, time.monotonic() + self._limits.total_s
        promised = response.length_remaining
        if promised is not None and promised > limits.max_bytes:
            raise OSError(f"{promised:,} bytes are more than the {limits.max_bytes:,} that are fetched")
        body = bytearray()
        try:
            # One piece as it comes: a call for more would wait for a server that sends a byte now and then.
            while piece := response.read1(_PIECE_BYTES, decode_content=False):
                body += piece
                if len(body) > limits.max_bytes:
                    raise OSError(f"more than {limits.max_bytes:,} bytes, which is all that is fetched")
                if time.monotonic() > until:
                    raise OSError(f"only {len(body):,} bytes came in {limits.total_s:g} s")
        except urllib3.exceptions.HTTPError as error:
            raise _BrokenBody(f"the answer broke off after {len(body):,} bytes") from error
        return bytes(body)


class _BrokenBody(OSError):
    """The error of an answer that broke off. Another attempt may bring all of it."""


class _PrivateHostError(Exception):
    """The error of a host that belongs to a private network, to this machine or to nobody. It is not asked again."""


class _Retry(urllib3.Retry):
    """A rule of repetitions that pauses as long as a server asks for, up to a limit."""

    def get_retry_after(self, response: Any) -> float | None:
        """Returns the pause that the server asks for, in seconds."""
        asked = super().get_retry_after(response)
        return None if asked is None else min(asked, LIMITS.longest_pause_s)


class _PublicHost(HTTPConnection):
    """A connection that no byte is sent on unless the other end has a public address.

    The address is that of the open connection: a name may have another one whenever it is looked up.
    """

    def _new_conn(self) -> Any:
        connection = super()._new_conn()
        address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if not address.is_global:
            connection.close()
            raise _PrivateHostError(
                f"{self.host} is {address}, which is not a public address; allow it with --allow-private-hosts"
            )
        return connection


class _PublicHostTls(_PublicHost, HTTPSConnection):
    """A connection of that kind with TLS."""


class _PublicHttp(urllib3.HTTPConnectionPool):
    ConnectionCls = _PublicHost


class _PublicHttps(urllib3.HTTPSConnectionPool):
    ConnectionCls = _PublicHostTls


def _explain(error: Exception) -> str:
    """Says why a request failed for good."""
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    if isinstance(cause, urllib3.exceptions.ConnectTimeoutError | urllib3.exceptions.NewConnectionError):
        return "the host cannot be reached"
    if isinstance(cause, urllib3.exceptions.ReadTimeoutError):
        return "the host does not answer in time"
    return shorten(str(cause))


def _ignore_warning(*_: object) -> None:
    """Does nothing, in place of Beam's warning with a traceback for every repetition."""
