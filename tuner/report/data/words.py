"""What pictures call a kernel's loads, MMAs and waits, and which of its warps have lanes.

Colours go by number, so that pages of any kernel share one style: the first operand that is loaded, the first kind of
MMA, and so on; those beyond the last colour share it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kernel_space.core.kernel import Kernel
    from kernel_space.core.operator import Operator

LOAD_COLOURS: Final = 4
MMA_COLOURS: Final = 3
LOADS: Final = tuple(f"tma{number}" for number in range(LOAD_COLOURS))
MMAS: Final = tuple(f"mma{number}" for number in range(MMA_COLOURS))
LOAD_WAITS: Final = tuple(f"wait{number}" for number in range(LOAD_COLOURS))
MMA_WORD: Final = "mma "  # and the kind, in the machine's record

# Causes that every kernel has by these names, in the order of the bars, and their classes.
_FIXED: Final = {
    "waiting for the tensor core": "wait_tensor",
    "MMA warp issuing": "issue",
    "epilogue exposed": "epilogue",
    "executing": "other",
    "prologue": "prologue",
    "launch": "launch",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words:
    """Of one kernel. ``loads``: operands by their names in the machine's record, in the order of their colours.
    ``mmas``: kind of MMA in the record -> its name, likewise. ``arrive``: the cause that waiting for other warps is
    called. ``tma_warp``, ``mma_warp``, ``epilogue_warp``: number of a warp, None for a kernel without that role.
    """

    loads: tuple[str, ...] = ()
    mmas: Mapping[str, str] = dataclasses.field(default_factory=dict)
    arrive: str = "waiting for other warps"
    tma_warp: int | None = None
    mma_warp: int | None = None
    epilogue_warp: int | None = None

    def load_keys(self) -> Iterator[tuple[str, str, str]]:
        """(operand, key of its loads, key of waiting for them)."""
        for number, name in enumerate(self.loads):
            place = min(number, LOAD_COLOURS - 1)
            yield name, LOADS[place], LOAD_WAITS[place]

    def mma_keys(self) -> Iterator[tuple[str, str, str]]:
        """(kind in the record, its name, key)."""
        for number, (kind, name) in enumerate(self.mmas.items()):
            yield kind, name, MMAS[min(number, MMA_COLOURS - 1)]

    def names(self) -> dict[str, str]:
        """Key of a timeline -> what it is."""
        found = {
            "copy": "tcgen05.cp of scale factors",
            "switch": "change of MMA kind",
            "epilogue": "epilogue at work",
            "store": "TMA store",
            "wait_acc": self.arrive.replace("waiting", "waits", 1),
            "wait_tensor": "waits for the tensor core",
            "wait_slot": "waits for a free slot",
            "wait_result": "waits for a finished accumulator",
            "issue": "MMA warp issues instructions",
        }
        for name, load, wait in self.load_keys():
            _join(found, load, name, "{} load in flight")
            _join(found, wait, name, "waits for {}")
        for _, name, key in self.mma_keys():
            _join(found, key, name, "{} MMA")
        return found

    def classes(self) -> dict[str, str]:
        """Cause -> its class, in the order of the bars: work first, so that equal work lies at the same place."""
        return {
            **{f"tensor, {name}": key for _, name, key in self.mma_keys()},
            "tensor, scale-factor copies": "copy",
            "tensor, change of kind": "switch",
            **{f"waiting for {name}": wait for name, _, wait in self.load_keys()},
            self.arrive: "wait_acc",
            **_FIXED,
        }


def _join(found: dict[str, str], key: str, name: str, form: str) -> None:
    """Those that share the last colour stand beside one another."""
    found[key] = f"{found[key]}, {form.format(name)}" if key in found else form.format(name)


def classes_of(words: Iterable[Words]) -> dict[str, str]:
    """``classes`` of several kernels: what the first of them has, then what the others have beside it."""
    found: dict[str, str] = {}
    for one in words:
        found |= {cause: css for cause, css in one.classes().items() if cause not in found}
    return found


def words_of(operator: Operator, kernel: Kernel) -> Words:
    """By the kernel's traits, and the operator's own names for what these leave open."""
    from kernel_space.core.traits import traits_of
    from tuner.simulated.time import CAUSES, cause_name

    traits = traits_of(kernel)
    loads = dict.fromkeys(traits.operands.get(name, name) for name in operator.signature.inputs)
    kinds = [cause for cause in CAUSES if cause.startswith(f"tensor: {MMA_WORD}")]
    called = {kind: cause_name(kind, traits.causes).removeprefix("tensor, ") for kind in kinds}
    warps = {role: number for number, role in sorted(traits.roles.items(), reverse=True)}
    return Words(
        loads=tuple(loads),
        mmas={kind.removeprefix("tensor: "): name for kind, name in called.items()},
        arrive=cause_name("wait: arrive", traits.causes),
        tma_warp=warps.get("tma_warp"),
        mma_warp=warps.get("mma_warp"),
        epilogue_warp=min(
            (number for role, number in warps.items() if role.startswith("epilogue")), default=None
        ),
    )
