"""``--cluster``: what ``tune``, ``measure`` and ``compile-only`` do on the hosts of a cluster."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.cli.options.fleet import LOCAL
from tuner.compile.manifest import Entry
from tuner.devices.device import Device
from tuner.fleet.engine import Access, Tls, access_of, require_engine
from tuner.search.progress import Progress
from tuner.stages.run import COMPILE_TIMEOUT_S, TuneOptions
from tuner.tune.tune_result import TuneResult

if TYPE_CHECKING:
    from tuner.fleet.fleet import Fleet
    from tuner.fleet.pools import FleetPool

ProgressFor = Callable[[Problem | None], Progress]
"""What lines go to: of one problem, or of the whole command."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnCluster:
    """An open cluster. ``device``: by the offer that judges; ``shown``: what the user is told of it."""

    fleet: Fleet
    access: Access
    device: str
    shown: Device
    progress: ProgressFor

    def tune(
        self,
        problems: list[Problem],
        options: Callable[[int, int], TuneOptions | None],
        *,
        objects: Path | None = None,
        given: Mapping[Problem, tuple[Entry, ...]] | None = None,
    ) -> Iterator[TuneResult]:
        from tuner.fleet.sweep import sweep
        from tuner.fleet.work import Work

        work = Work(access=self.access, device=self.device, objects=objects, given=given)
        return sweep(self.fleet, work, problems, options, self.progress)

    def jobs(self, side: int) -> int:
        """Compilers of each of ``side`` problems at a time."""
        from tuner.fleet.devices import jobs_of_each

        return jobs_of_each(self.fleet, side)


@contextlib.contextmanager
def opened(args: argparse.Namespace, progress: ProgressFor, *, compiles: bool = True) -> Iterator[OnCluster]:
    """The cluster of ``--cluster`` with the device of ``--device``. Raises ``InputError``."""
    from tuner.fleet.devices import device_of, resolved, summary

    say = progress(None).say
    with fleet_of(args, say) as (fleet, access):
        own_card = LOCAL.fullmatch(args.cluster) and args.device.startswith("cuda")
        device = resolved(fleet, "auto" if own_card else args.device, compiles=compiles)
        say(f"cluster {access.address}: {summary(fleet)}")
        shown = device_of(fleet, device, say=say)
        yield OnCluster(fleet=fleet, access=access, device=device, shown=shown, progress=progress)


@contextlib.contextmanager
def compilers(args: argparse.Namespace, say: Callable[[str], None]) -> Iterator[FleetPool]:
    """The cluster of ``--cluster``, of which nothing but compilers is asked. Raises ``InputError``."""
    from tuner.fleet.devices import require
    from tuner.fleet.identity import COMPILE
    from tuner.fleet.pools import FleetPool

    with fleet_of(args, say) as (fleet, _):
        require(fleet, COMPILE)
        yield FleetPool(fleet, COMPILE_TIMEOUT_S)


@contextlib.contextmanager
def fleet_of(args: argparse.Namespace, say: Callable[[str], None]) -> Iterator[tuple[Fleet, Access]]:
    require_engine()
    from tuner.fleet.fleet import Fleet

    with _access(args) as access:
        if access.warning:
            say(access.warning)
        with Fleet(access, say=say) as fleet:
            yield fleet, access


def no_cluster(args: argparse.Namespace) -> None:
    """Raises ``InputError`` for options that mean nothing without ``--cluster``."""
    if args.tls_ca_file or args.tls_cert or args.tls_key:
        raise InputError("--tls-ca-file, --tls-cert and --tls-key are for --cluster ADDRESS; leave them out")


@contextlib.contextmanager
def _access(args: argparse.Namespace) -> Iterator[Access]:
    tls = Tls(ca_file=args.tls_ca_file, cert=args.tls_cert, key=args.tls_key)
    if (match := LOCAL.fullmatch(args.cluster)) is None:
        yield access_of(args.cluster, tls)
        return
    if tls.on:
        raise InputError("local:N does not leave this machine: leave the TLS files out")
    from tuner.fleet.local import local_cluster

    with local_cluster(int(match[1]), _own_cards(getattr(args, "device", ""))) as access:
        yield access


def _own_cards(device: str) -> list[int]:
    """Cards of this machine that a local cluster offers: the one named, or all that a kernel runs on."""
    from tuner.devices.probe import probe_cuda
    from tuner.devices.select import has_kernels, select_card

    if device.startswith("cuda:") and device[5:].isdecimal():
        return [select_card(int(device[5:])).index]
    return [card.index for card in probe_cuda() if has_kernels(card)]
