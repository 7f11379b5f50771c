"""What a mutation is, the small kernels and problems it is tried on, and the list that families add to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kernel_space.core.errors import InputError
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.svdquant_gemm.mutations.layout import MutationContext
from kernel_space.operators.svdquant_gemm.mutations.text import PtxEditor

Edit = Callable[[PtxEditor], None]
ALL = tuple(SCHEDULES)
SURVIVES = "survives"
DEADLOCK, RACE, PROTOCOL, ILLEGAL, WRONG = (
    "DEADLOCK",
    "RACE",
    "PROTOCOL_ERROR",
    "ILLEGAL_ACCESS",
    "WRONG_RESULT",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A small kernel. ``shape`` gives R; M, N, K and the number of SMs are those of ``validate.exercise``: at least
    three tiles per CTA, ragged everywhere.
    """

    config: str
    shape: str


def _case(tile: str, cluster: str, r: int, *knobs: str) -> Case:
    config = f"mma_tiler_mn={tile} cluster_shape_mn={cluster} num_acc_stage=2 num_c_stage=2 {' '.join(knobs)}"
    return Case(config=config, shape=f"512,1024,512,{r}")


CASES: dict[str, Case] = {
    "solo": _case("128x64", "1x1", 192, "num_ab_stage=3", "num_lora_stage=2", "epi_tile_n=32"),
    "pair": _case("256x64", "2x1", 128, "num_ab_stage=3", "num_lora_stage=2", "epi_tile_n=32"),
    "cluster": _case("128x64", "2x2", 64, "num_ab_stage=2", "num_lora_stage=1", "epi_tile_n=32"),
    "overlap": _case("128x256", "1x1", 64, "num_ab_stage=2", "num_lora_stage=1", "epi_tile_n=64"),
    "ride": _case("128x64", "1x1", 128, "num_ab_stage=3", "lora_buffer=ab_stage", "epi_tile_n=32"),
    "split": _case("128x64", "1x1", 64, "num_ab_stage=2", "num_lora_stage=1", "epi_tile_n=32", "split_k=2"),
    "early": _case(
        "128x64",
        "1x1",
        64,
        "num_ab_stage=2",
        "num_lora_stage=1",
        "epi_tile_n=32",
        "split_k=2",
        "use_pdl=true",
    ),
    "wide": _case("128x192", "1x1", 64, "num_ab_stage=2", "num_lora_stage=1", "epi_tile_n=64"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutation:
    """One defect, and how the machine must report it.

    ``name``      what ``check --inject`` takes
    ``what``      one sentence for a user
    ``case``      key of ``CASES``: where it is tried
    ``expected``  classes of report, each seen under some schedule and one of them under each of ``by``;
                  ``("survives",)`` with a ``reason``
    ``by``        schedules that catch it, the one to try first leading
    ``barrier``   what a report of the first expected class must name, such as ``ab_full[0]``
    ``cause``     words that it must have: of the cause sentence, or of the race
    """

    name: str
    what: str
    case: str
    expected: tuple[str, ...]
    by: tuple[str, ...]
    edit: Edit
    barrier: str = ""
    cause: str = ""
    reason: str = ""

    def apply(self, ptx: str, context: MutationContext) -> str:
        """The mutated text. Raises ``NotApplicable`` for a kernel without what the mutation changes."""
        editor = PtxEditor(ptx, context)
        self.edit(editor)
        return editor.text()


MUTATIONS: dict[str, Mutation] = {}


def mutation(
    what: str,
    case: str,
    *expected: str,
    by: tuple[str, ...] = ALL,
    barrier: str = "",
    cause: str = "",
    reason: str = "",
) -> Callable[[Edit], Edit]:
    """Add a function to ``MUTATIONS`` under its own name."""

    def add(edit: Edit) -> Edit:
        name = edit.__name__
        if name in MUTATIONS:
            raise AssertionError(f"two mutations are called {name}")
        MUTATIONS[name] = Mutation(
            name=name, what=what, case=case, expected=expected, by=by, edit=edit, barrier=barrier, cause=cause,
            reason=reason,
        )  # fmt: skip
        return edit

    return add


def find_mutation(name: str) -> Mutation:
    """Raises ``InputError`` for a name that is not in ``MUTATIONS``."""
    if name not in MUTATIONS:
        raise InputError(f"unknown mutation {name!r}; known are {' '.join(MUTATIONS)}")
    return MUTATIONS[name]
