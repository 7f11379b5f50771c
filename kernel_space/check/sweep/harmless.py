"""Why a mutant that survives does no harm, where that can be said without a person.

Each rule looks at the mutant and at who executed what; it gives one sentence, or nothing. What no rule explains is for
a person to study.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from kernel_space.check.sweep.mutant import LANES, Kernel, Mutant, is_relevant, is_wait, orders
from kernel_space.check.sweep.text import Statement
from kernel_space.machine.units.shared_loads import lines_of_open_loads

_GENERIC = ("ld", "st", "atom", "red", "ldmatrix", "stmatrix")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Of the config: CTAs of a cluster and on an SM; may its launch begin before the one before it has ended?"""

    cluster_size: int
    ctas_per_sm: int
    launches_early: bool


Rule = Callable[[Kernel, Mutant, Facts], str]


def before_it_runs(kernel: Kernel, original: str, mutant: Mutant) -> str:
    """What makes a run needless."""
    if mutant.text.split() == original.split():
        return "the PTX is the same"
    statements = [mutant.statement, *([mutant.other] if mutant.other else [])]
    if not any(kernel.warps(one) for one in statements):
        return "no thread executes it in the exercise"
    return ""


def why_harmless(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """Of a survivor; empty if no rule explains it."""
    return next((why for rule in _RULES if (why := rule(kernel, mutant, facts))), "")


def _launches(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    tokens = mutant.statement.tokens
    if tokens[:2] == ("griddepcontrol", "launch_dependents"):
        return "it only says how early the next launch may begin, which orders no memory"
    if tokens[:2] == ("griddepcontrol", "wait") and not facts.launches_early:
        return "the launch lacks the attribute with which it could begin early: the wait returns at once"
    return ""


def _resources(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    tokens = mutant.statement.tokens
    if tokens[0] == "setmaxnreg":
        return "registers move between warpgroups: a matter of speed, and there are enough of them"
    if "relinquish_alloc_permit" in tokens and facts.ctas_per_sm == 1:
        return "one CTA per SM: nobody else waits for the permit to allocate"
    return ""


def _scopes(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    narrower = mutant.what.endswith((".cta", ".release.cta")) or ".cluster -> " in mutant.what
    remote = mutant.statement.tokens[0] in ("mbarrier", "barrier")
    if mutant.kind == "weakened" and narrower and remote and facts.cluster_size == 1:
        return "a cluster is one CTA: nobody else is in the wider scope"
    return ""


def _nothing_to_release(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    if mutant.kind != "weakened" or "relaxed" not in mutant.what or is_wait(mutant.statement):
        return ""
    warps = kernel.warps(mutant.statement)
    for one in kernel.source.statements:
        generic = one.tokens[0] in _GENERIC and "param" not in one.tokens
        tensor = one.tokens[0] == "tcgen05" and one.tokens[1] in ("ld", "st")
        before = one.entry == mutant.statement.entry and one.line < mutant.line
        if (generic or tensor) and before and set(kernel.warps(one)) & set(warps):
            return ""
    return "its warps access no memory by themselves: there is nothing to release"


def _doubled(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """A fence beside one that is at least as strong, or beside an atomic that is one itself."""
    tokens = mutant.statement.tokens
    if tokens[:2] == ("fence", "acq_rel"):
        for other in _neighbours(kernel, mutant.statement, 12):
            if other.tokens[0] in ("atom", "red") and "acq_rel" in other.tokens:
                return f"the {other.instr.opcode} of line {other.line} is acq_rel at GPU scope itself"
    for other in _neighbours(kernel, mutant.statement, 4):
        if other.text == mutant.statement.text and tokens[0] in ("fence", "membar"):
            return f"the same fence stands on line {other.line}"
    if mutant.kind == "weakened" and tokens[0] in ("atom", "red") and {"acq_rel", "release"} & {*tokens}:
        fences = [one for one in _neighbours(kernel, mutant.statement, 12) if one.tokens[0] == "fence"]
        if len(fences) >= 2:
            return f"fences stand on both sides, lines {fences[0].line} and {fences[-1].line}"
    return ""


def _neighbours(kernel: Kernel, statement: Statement, reach: int) -> list[Statement]:
    return [
        one for one in kernel.source.statements if 0 < abs(one.line - statement.line) <= reach and orders(one)
        or 0 < abs(one.line - statement.line) <= reach and one.tokens[0] in ("atom", "red", "fence")
    ]  # fmt: skip


def _lanes(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """What no thread owns may be another lane's, and what was already ordered by the same election."""
    if mutant.kind != "wrong thread" or " lane" not in f" {mutant.what}":
        return ""
    statements = [mutant.statement]
    if mutant.statement.tokens[0] == "elect":
        branch = next((one for one in kernel.source.statements if one.line > mutant.line and one.tokens[0] == "bra"),
                      None)  # fmt: skip
        end = branch.text.split()[-1] if branch else ""
        statements = []
        for one in kernel.source.statements:
            if branch is not None and one.line > branch.line:
                if any(end + ":" in kernel.source.lines[at - 1] for at in range(branch.line, one.line)):
                    break
                statements.append(one)
    inits = [one for one in statements if one.tokens[:2] == ("mbarrier", "init")]
    if mutant.what.startswith("every") and inits:
        return "every lane of one warp writes the same count before anybody uses it; other kernels do so, too"
    if statements and all(_belongs_to_nobody(one) for one in statements):
        return "what is counted by an mbarrier belongs to no thread: any lane of the warp may issue it"
    return ""


def _belongs_to_nobody(one: Statement) -> bool:
    tokens = one.tokens
    if tokens[:3] == ("cp", "async", "bulk"):
        return "mbarrier::complete_tx::bytes" in tokens or "prefetch" in tokens
    if tokens[0] == "mbarrier":
        return tokens[1] in ("arrive", "expect_tx", "init")
    return tokens[0] not in ("st", "red", "atom", "tcgen05", "cp", "fence", "bar", "barrier", "wgmma", "bra")


def _nothing_follows(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """A wait at the end of a role."""
    if mutant.kind in ("wrong thread", "wrong mask") or not is_wait(mutant.statement):
        return ""
    warps, line = set(kernel.warps(mutant.statement)), mutant.line
    for one in kernel.source.statements:
        if one.line <= line or one.entry != mutant.statement.entry or not set(kernel.warps(one)) & warps:
            continue
        back = one.tokens[0] == "bra" and not _leads_on(kernel, one)
        accesses = one.tokens[0] in _GENERIC and "param" not in one.tokens
        if back or accesses or (is_relevant(one) and not is_wait(one)):
            return ""
    return "behind it its warps only wait and end, and the machine checks that all arrivals have come by then"


def _leads_on(kernel: Kernel, branch: Statement) -> bool:
    """Is its label further on in the text?"""
    label = branch.text.split()[-1] + ":"
    return any(line.strip().startswith(label) for line in kernel.source.lines[branch.line :])


def _init_fence(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    both = (mutant.statement, *((mutant.other,) if mutant.other else ()))
    fences = any(one.tokens[:2] == ("fence", "mbarrier_init") for one in both)
    if fences and facts.cluster_size == 1:
        return "a cluster is one CTA: its barrier shows the initialised mbarriers to all of its warps"
    return ""


def _blocks(one: Statement) -> bool:
    tokens = one.tokens
    return is_wait(one) or tokens[:2] in (("bar", "sync"), ("barrier", "sync"), ("griddepcontrol", "wait"))


def _no_groups(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """A wait for bulk groups by fewer warps, of which the others have none."""
    one, words = mutant.statement, mutant.what.split()
    if (
        "wait_group" not in one.tokens
        or "bulk" not in one.tokens
        or mutant.what.find("all of its warps but") < 0
    ):
        return ""
    left_out = int(words[-1])
    groups = [other for other in kernel.source.statements if "bulk_group" in other.tokens]
    if any(left_out in kernel.warps(other) for other in groups):
        return ""
    return f"warp {left_out} has issued no bulk store: it has nothing to wait for"


def _another_barrier(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    one = mutant.statement
    if mutant.what != "the next barrier" or one.tokens[1] != "sync":
        return ""
    count = one.operands[1] if len(one.operands) > 1 else str(kernel.source.threads[one.entry])
    if count.isdigit() and int(count) == LANES * len(kernel.warps(one)):
        return "all threads of the barrier execute this one, and the other is free at that time"
    return ""


def _commuting(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """Two neighbours that any order suits."""
    if mutant.kind != "misplaced" or mutant.other is None:
        return ""
    first, second = mutant.statement, mutant.other
    both = {first.tokens[:2], second.tokens[:2]}
    if _blocks(first) and _blocks(second):
        return "two waits in a row: both are over before anything follows"
    if {first.tokens[0], second.tokens[0]} == {"fence", "bar"} and "proxy" in (*first.tokens, *second.tokens):
        return "a proxy fence covers what the barrier brings, too: it may stand on either side"
    if len(both) == 1 and first.tokens[0] in ("mbarrier", "tcgen05", "fence") and (
        first.tokens[1] in ("arrive", "commit", "acq_rel", "mbarrier_init")
    ):  # fmt: skip
        return "two of one kind in a row: either covers the same operations"
    for one, other in ((first, second), (second, first)):
        if "expect_tx" in one.tokens and other.tokens[:3] == ("cp", "async", "bulk"):
            return "bytes may come before they are expected while the arrival is still to come"
    return ""


def _reads_are_over(kernel: Kernel, mutant: Mutant, facts: Facts) -> str:
    """A proxy fence behind reads alone, before the next copy into their place."""
    fence = mutant.statement
    if fence.tokens[:3] != ("fence", "proxy", "async") or mutant.kind not in (
        "removed",
        "weakened",
        "wrong thread",
    ):
        return ""
    before = [one for one in kernel.source.statements if one.entry == fence.entry and one.line < fence.line]
    for one in reversed(before):
        if one.tokens[0] in ("bar", "barrier", "mbarrier", "fence"):
            break
        if one.tokens[0] in ("st", "stmatrix", "atom", "red", "cp"):
            return ""
    source = "\n".join(kernel.source.lines)
    if lines_of_open_loads(mutant.text, fence.entry) - lines_of_open_loads(source, fence.entry):
        return ""
    return "a register of every load has been used before it: none is under way any more"


_RULES: tuple[Rule, ...] = (_launches, _resources, _scopes, _nothing_to_release, _doubled, _lanes, _commuting,
                            _nothing_follows, _init_fence, _another_barrier, _no_groups, _reads_are_over)  # fmt: skip
