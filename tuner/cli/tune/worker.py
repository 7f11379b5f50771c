"""``worker``: offer this host to a cluster, until it is stopped."""

from __future__ import annotations

import argparse
import os
import sys

from kernel_space.core.errors import InputError
from tuner.fleet.engine import LOOPBACK, Access, Tls, access_of, is_loopback, require_engine


def worker_command(args: argparse.Namespace) -> int:
    """0 when it was told to stop. Raises ``InputError``."""
    access = access_of(args.address, Tls(ca_file=args.tls_ca_file, cert=args.tls_cert, key=args.tls_key))
    require_engine()
    listen = _listen(access, args.host)
    from tuner.fleet.host import Host, host_name, own_cards
    from tuner.fleet.worker import member_names, serve

    jobs = (os.cpu_count() or 1) if args.compile is None else args.compile
    if not jobs and not args.card:
        raise InputError("a host must offer something: --compile N, --card N, or both")
    names = member_names(host_name(), args.card)
    owned = {names[own.card.index]: own for own in own_cards(args.card)} if args.card else {}
    if access.warning:
        _say(access.warning)
    host = Host(jobs, owned)
    try:
        serve(access, host, listen=listen, say=_say)
    finally:
        host.close()
    return 0


def _listen(access: Access, named: str | None) -> str:
    """Raises ``InputError`` where the loopback would not do: nothing listens elsewhere unless somebody says so."""
    if named is not None:
        return named
    if is_loopback(access.host):
        return LOOPBACK
    raise InputError(
        f"a host of {access.address} must be reached from there: give --host with this machine's address in that net"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
