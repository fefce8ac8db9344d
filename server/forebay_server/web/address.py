"""Where the status page is served: `HOST:PORT` parsed, and which names a request may call that place by. Pure."""

import ipaddress
import re
from dataclasses import dataclass

from forebay_core.errors import ConfigurationError

_HINT = "give 127.0.0.1:9461, [::1]:9461, or :9461 for all interfaces; port 0 picks a free one (--http, FOREBAY_HTTP)"
_FORM = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")
#: The port is not compared: a tunnel or a container may show it as another one.
_HOST_HEADER = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """A numeric host (empty: all interfaces) and a port (0: any that is free)."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HttpAddress":
        """Reads `HOST:PORT`; `localhost` is 127.0.0.1. Raises `ConfigurationError`."""
        match = _FORM.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ConfigurationError(f"the address {text!r} to serve HTTP on is not HOST:PORT: {_HINT}")
        host = match["v6"] if match["v6"] is not None else match["host"]
        host = "127.0.0.1" if host.lower() == "localhost" else host
        if host or match["v6"] is not None:
            try:
                host = str(ipaddress.ip_address(host))
            except ValueError:
                raise ConfigurationError(f"the address {text!r} has no numeric host: {_HINT}") from None
        return cls(host, int(match["port"]))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return bool(self.host) and ipaddress.ip_address(self.host).is_loopback

    @property
    def url(self) -> str:
        """For people on this machine."""
        host = ipaddress.ip_address(self.host) if self.host else None
        if host is None or host.is_unspecified:
            return f"http://localhost:{self.port}/"
        return f"http://[{host}]:{self.port}/" if host.version == 6 else f"http://{host}:{self.port}/"

    def is_called(self, host_header: str | None) -> bool:
        """Whether a request with this `Host` header was meant for this place.

        A web page of anybody can have its own name resolve to 127.0.0.1 and so read what is served there (DNS
        rebinding); its requests then carry that name. An address that others reach may have any name.
        """
        if not self.is_loopback:
            return True
        match = _HOST_HEADER.fullmatch(host_header or "")
        if match is None:
            return False
        host = match[1] or match[2]
        if host.lower().rstrip(".") == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False
