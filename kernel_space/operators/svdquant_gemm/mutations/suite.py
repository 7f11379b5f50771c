"""The mutation suite: defects of the protocol in this project's PTX, each with the report it must cause.

``MUTATIONS[name].apply(ptx, MutationContext.of(config, problem_class))`` gives the mutated text; ``run_compiled`` and
``validate.check_candidate`` run it (``ptx=``) with the launch of the unmodified kernel. ``python -m
kernel_space.operators.svdquant_gemm.mutations.suite`` prints the table of docs/mutations.md.
"""

from __future__ import annotations

from kernel_space.operators.svdquant_gemm.mutations import barriers as mutate_barriers
from kernel_space.operators.svdquant_gemm.mutations import copies as mutate_copies
from kernel_space.operators.svdquant_gemm.mutations import epilogue as mutate_epilogue
from kernel_space.operators.svdquant_gemm.mutations import launches as mutate_launches
from kernel_space.operators.svdquant_gemm.mutations import parts as mutate_parts
from kernel_space.operators.svdquant_gemm.mutations import rings as mutate_rings
from kernel_space.operators.svdquant_gemm.mutations import tensor as mutate_tensor
from kernel_space.operators.svdquant_gemm.mutations import weakened as mutate_weakened
from kernel_space.operators.svdquant_gemm.mutations.base import (
    ALL,
    CASES,
    MUTATIONS,
    SURVIVES,
    Case,
    Mutation,
    find_mutation,
)
from kernel_space.operators.svdquant_gemm.mutations.kinds import KINDS
from kernel_space.operators.svdquant_gemm.mutations.layout import MutationContext
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable

__all__ = [
    "CASES",
    "KINDS",
    "MUTATIONS",
    "Case",
    "Mutation",
    "MutationContext",
    "NotApplicable",
    "find_mutation",
    "table",
    "table_of_kinds",
]

FAMILIES = (
    mutate_barriers, mutate_rings, mutate_copies, mutate_tensor, mutate_epilogue, mutate_launches, mutate_weakened,
    mutate_parts,
)  # fmt: skip


def table_of_kinds() -> str:
    """Markdown: how many mutations there are of each kind, and how many change nothing that PTX promises."""
    rows = ["| kind | mutations | reported | harmless |", "|---|---|---|---|"]
    for kind, names in KINDS.items():
        harmless = sum(MUTATIONS[name].expected == (SURVIVES,) for name in names)
        rows.append(f"| {kind} | {len(names)} | {len(names) - harmless} | {harmless} |")
    return "\n".join(rows) + "\n"


def table() -> str:
    """Markdown: one table per family, in the order of the source."""
    parts = []
    for family in FAMILIES:
        title = (family.__doc__ or "").strip().removeprefix("Mutations of ").rstrip(".")
        rows = [_row(found) for found in MUTATIONS.values() if found.edit.__module__ == family.__name__]
        head = ["| name | what | kernel | caught as | by |", "|---|---|---|---|---|"]
        parts.append("\n".join([f"## {title[0].upper()}{title[1:]}", "", *head, *rows]))
    return "\n\n".join(parts) + "\n"


def _row(found: Mutation) -> str:
    if found.expected == (SURVIVES,):
        caught, by = "survives", found.reason
    else:
        named = f", names `{found.barrier}`" if found.barrier.endswith("]") else ""
        caught = " or ".join(found.expected) + named
        by = "all" if found.by == ALL else ", ".join(found.by)
    return f"| `{found.name}` | {found.what} | {found.case} | {caught} | {by} |"


if __name__ == "__main__":
    print(f"{table_of_kinds()}\n{table()}", end="")
