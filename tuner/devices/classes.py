"""Device classes: a GPU product by its name, with the numbers that its kernels and its roofs depend on.

A class is the folder below ``results/``. A compute capability is no class: a time of an H200 says little of an H100,
whose memory is a third slower. A card is of a shipped class when its product name, compute capability and SMs are those
of the class and its memory is about as fast; a slice of a card (MIG) or a cut-down variant is not. Every other card
whose architecture has a record in ``core/arch.py`` is of a class of its own, named after its product, with the numbers
that the driver gives.

Nothing here needs torch, a driver or the DSL.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

from kernel_space.core.arch import ARCHS, SM90A, SM100A, SM103A, Arch

MIB = 1 << 20
PUBLISHED = "published"
READ = "read from the card"
# Data sheets round, and drivers differ: two of them make 7.67 and 8.18 TB/s of the same B200 by clock and bus width.
BANDWIDTH_TOLERANCE = 0.1
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceClass:
    """A kind of GPU.

    ``sm_count``; ``dram_bytes_s``: memory bandwidth, bytes per second, None if nobody told; ``l2_bytes``: what
    ``cudaDeviceProp`` reports. ``half_flops_s``: fp16 operations per second of the tensor cores, dense; None where no
    data sheet says so. ``products``: names by which the driver knows it. ``kind`` and ``source`` of these numbers.
    """

    name: str
    arch: Arch
    sm_count: int
    dram_bytes_s: float | None
    l2_bytes: int | None
    half_flops_s: float | None = None
    products: tuple[str, ...] = ()
    kind: str = PUBLISHED
    source: str = ""

    def __str__(self) -> str:
        memory = "" if self.dram_bytes_s is None else f", {self.dram_bytes_s * 1e-12:.3g} TB/s"
        l2 = "" if self.l2_bytes is None else f", {self.l2_bytes / MIB:.4g} MiB L2"
        return f"{self.name} ({self.arch.name}, {self.sm_count} SMs{memory}{l2})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the machine shows. ``index`` counts as in ``cuda:<index>``; ``uuid`` is the driver's name for it.

    ``dram_bytes_s`` and ``l2_bytes`` as in ``DeviceClass``, from the driver; None: it does not say.
    """

    index: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    uuid: str = ""
    dram_bytes_s: float | None = None
    l2_bytes: int | None = None

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"cuda:{self.index} ({self.name}, compute capability {major}.{minor}, {self.sm_count} SMs)"


# half_flops_s: the sheets state fp16 with sparsity, dense is half of that. l2_bytes: Hopper has 60 MiB with six stacks
# of HBM (docs/gpu.md for an H200, public device queries of an H100 NVL), 50 MiB with five (H100 architecture paper).
DEVICE_CLASSES = {
    device_class.name: device_class
    for device_class in (
        DeviceClass(
            name="b200",
            arch=SM100A,
            sm_count=148,  # two dies of 74 (SemiAnalysis, "Dissecting Blackwell tensor cores", 2026)
            dram_bytes_s=7.7e12,
            l2_bytes=126 * MIB + MIB // 2,  # the Blackwell tuning guide rounds to 126 MB
            products=("NVIDIA B200",),
            source="NVIDIA HGX B200 data sheet",
        ),
        DeviceClass(
            name="b300",
            arch=SM103A,
            sm_count=148,  # what cudaDeviceProp reports on HGX B300; a GB300 has more and is a class of its own
            dram_bytes_s=7.7e12,
            l2_bytes=126 * MIB + MIB // 2,  # taken as that of B200
            products=("NVIDIA B300", "NVIDIA B300 SXM6 AC"),
            source="NVIDIA HGX B300 data sheet",
        ),
        DeviceClass(
            name="h200",
            arch=SM90A,
            sm_count=132,
            dram_bytes_s=4.8e12,
            l2_bytes=60 * MIB,
            half_flops_s=1979e12 / 2,
            products=("NVIDIA H200",),
            source="NVIDIA H200 SXM data sheet",
        ),
        DeviceClass(
            name="h100",
            arch=SM90A,
            sm_count=132,
            dram_bytes_s=3.35e12,
            l2_bytes=50 * MIB,
            half_flops_s=1979e12 / 2,
            products=("NVIDIA H100 80GB HBM3",),
            source="NVIDIA H100 SXM data sheet",
        ),
        DeviceClass(
            name="h100-pcie",
            arch=SM90A,
            sm_count=114,
            dram_bytes_s=2.0e12,
            l2_bytes=50 * MIB,
            half_flops_s=1513e12 / 2,
            products=("NVIDIA H100 PCIe",),
            source="NVIDIA H100 PCIe data sheet",
        ),
        DeviceClass(
            name="h100-nvl",
            arch=SM90A,
            sm_count=132,
            dram_bytes_s=3.9e12,
            l2_bytes=60 * MIB,
            half_flops_s=1671e12 / 2,
            products=("NVIDIA H100 NVL",),
            source="NVIDIA H100 NVL data sheet",
        ),
    )
}
DEFAULT_CLASS = "b200"


def class_of(card: Card) -> DeviceClass | None:
    """The class of ``card``: a shipped one, else its own. None for an architecture without a record."""
    arch = next((one for one in ARCHS.values() if one.compute_capability == card.compute_capability), None)
    if arch is None:
        return None
    named = _by_product(card.name)
    if named is not None and named.arch == arch and _is_whole(card, named):
        return named
    return DeviceClass(
        name=_own_name(card, named),
        arch=arch,
        sm_count=card.sm_count,
        dram_bytes_s=card.dram_bytes_s,
        l2_bytes=card.l2_bytes,
        products=(card.name,),
        kind=READ,
        source=f"driver of {card.name}",
    )


def is_class_name(name: str) -> bool:
    """Can ``name`` be that of a class, and so of a folder? Lower case letters, digits and dashes, at most 64."""
    return _NAME.fullmatch(name) is not None


def siblings(device_class: DeviceClass) -> list[DeviceClass]:
    """Shipped classes of the same architecture, which run the same objects: the most alike first."""
    others = [one for one in DEVICE_CLASSES.values() if one.arch == device_class.arch]
    return sorted(
        (one for one in others if one.name != device_class.name), key=lambda one: _unlike(device_class, one)
    )


def names(classes: Iterable[DeviceClass]) -> str:
    return ", ".join(one.name for one in classes)


def _by_product(product: str) -> DeviceClass | None:
    return next((one for one in DEVICE_CLASSES.values() if product in one.products), None)


def _is_whole(card: Card, named: DeviceClass) -> bool:
    """Are the card's numbers those of the product whose name it has? What the driver does not tell speaks for it."""
    if card.sm_count != named.sm_count:
        return False
    if card.dram_bytes_s is None or named.dram_bytes_s is None:
        return True
    return abs(card.dram_bytes_s / named.dram_bytes_s - 1) <= BANDWIDTH_TOLERANCE


def _own_name(card: Card, named: DeviceClass | None) -> str:
    """``NVIDIA GH200 480GB``: nvidia-gh200-480gb. Variants under the name of a shipped product are told apart by their
    numbers, for example under a limit of SMs that the user set."""
    numbers = []
    if named is not None or not re.search("[A-Za-z0-9]", card.name):
        numbers.append(f"{card.sm_count}sm")
        if card.dram_bytes_s is not None:
            numbers.append(f"{card.dram_bytes_s * 1e-9:.0f}gbs")
    tail = "-".join(numbers)
    plain = re.sub("[^a-z0-9]+", "-", card.name.lower()).strip("-") or "card"
    plain = plain[: 63 - len(tail)].strip("-")
    own = f"{plain}-{tail}" if tail else plain
    return (
        f"{own}-card" if own in DEVICE_CLASSES else own
    )  # a product called "H200" is not what NVIDIA calls H200


def _unlike(one: DeviceClass, other: DeviceClass) -> float:
    """Doublings between the numbers of SMs and between the bandwidths, added."""
    apart = abs(math.log2(one.sm_count / other.sm_count))
    if one.dram_bytes_s and other.dram_bytes_s:
        apart += abs(math.log2(one.dram_bytes_s / other.dram_bytes_s))
    return apart
