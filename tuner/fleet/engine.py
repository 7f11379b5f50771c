"""dask.distributed as far as the fleet uses it: whether it is there, how it is secured, how it is connected to."""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_space.core.errors import InputError

if TYPE_CHECKING:
    from distributed import Client, Security

LOOPBACK = "127.0.0.1"
CONNECT_S = 10.0
_ADDRESS = re.compile(r"(?:(tcp|tls)://)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


class FleetLost(InputError):
    """The scheduler is gone, and with it every task that was on its way."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tls:
    """Files as dask documents them: of the authority, of this side's certificate and its key; none, or all three."""

    ca_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        """Raises ``InputError`` for some without the others, and for a file that is not there."""
        given = [path for path in (self.ca_file, self.cert, self.key) if path is not None]
        if given and len(given) < 3:
            raise InputError("--tls-ca-file, --tls-cert and --tls-key must be given together")
        for path in given:
            if not path.is_file():
                raise InputError(f"--tls-ca-file, --tls-cert and --tls-key must be files, {path} is none")

    @property
    def on(self) -> bool:
        return self.ca_file is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Access:
    """A scheduler and how to reach it."""

    address: str
    tls: Tls = Tls()

    @property
    def host(self) -> str:
        return self.address.partition("://")[2].rpartition(":")[0].strip("[]")

    @property
    def warning(self) -> str:
        """One line for an address that others may reach and that nothing secures, else nothing."""
        if self.tls.on or is_loopback(self.host):
            return ""
        return (
            f"warning: {self.address} has no TLS: whoever reaches it runs code on every host of the cluster and on "
            "this one; give --tls-ca-file, --tls-cert and --tls-key"
        )


def require_engine() -> None:
    """Raises ``InputError`` where dask is not installed. Then also keeps its log to what a user must know, its profiler
    from looking at threads that only wait, and its client from reading the source of whoever submits."""
    try:
        from distributed.config import dask  # the engine's own settings
    except ModuleNotFoundError as error:
        if error.name not in ("distributed", "dask"):
            raise
        raise InputError(
            "dask.distributed is not installed, which --cluster and worker need; pip install 'svdquant-tune[fleet]'"
        ) from None
    dask.config.set(
        {"distributed.worker.profile.enabled": False, "distributed.diagnostics.computations.nframes": 0}
    )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    logging.getLogger("tornado").setLevel(logging.CRITICAL)


def access_of(text: str, tls: Tls) -> Access:
    """Of ``HOST:PORT``, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``. Raises ``InputError``."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise InputError(
            f"a scheduler's address must be tcp://HOST:PORT or tls://HOST:PORT, got {text!r:.80}"
        )
    protocol = match[1] or ("tls" if tls.on else "tcp")
    if (protocol == "tls") != tls.on:
        need = (
            "needs --tls-ca-file, --tls-cert and --tls-key"
            if not tls.on
            else "would not use the TLS files given"
        )
        raise InputError(f"{text} {need}")
    return Access(address=f"{protocol}://{match[2]}:{match[3]}", tls=tls)


def is_loopback(host: str) -> bool:
    """By its spelling: a name other than ``localhost`` is somebody else's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def security_of(tls: Tls) -> Security | None:
    from distributed import Security

    if not tls.on:
        return None
    sides: dict[str, Any] = {}
    for side in ("client", "worker", "scheduler"):
        sides |= {f"tls_{side}_cert": str(tls.cert), f"tls_{side}_key": str(tls.key)}
    return Security(require_encryption=True, tls_ca_file=str(tls.ca_file), **sides)


def connect(access: Access) -> Client:
    """A client of the scheduler. Raises ``InputError`` when nobody answers."""
    require_engine()
    from distributed import Client

    try:
        return Client(
            access.address, security=security_of(access.tls), timeout=CONNECT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"no scheduler answers at {access.address} ({reason:.120}): start it: dask scheduler --host {access.host}"
        ) from None
