"""Mutations of programmatic launch: the wait for the launch before, and what is done ahead of it."""

from __future__ import annotations

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.operators.svdquant_gemm.mutations.base import RACE, SURVIVES, mutation
from kernel_space.operators.svdquant_gemm.mutations.text import NotApplicable, PtxEditor, operand_texts

WAIT = r"griddepcontrol\.wait"
NO_WAIT = "no griddepcontrol.wait orders the two"
TMA_THREADS, MMA_THREADS = 160, 128  # the first thread of either warp
_IF_THREAD = (
    "{{ .reg .pred mine; .reg .b32 mutant; mov.u32 mutant, %tid.x; setp.{how}.u32 mine, mutant, {thread}; "
    "{then} }}"
)


def _wait(edit: PtxEditor) -> Instr:
    return edit.find(WAIT)[0]


def _for(how: str, thread: int, then: str) -> str:
    """``then``, whose instructions have the guard ``@mine``, for the threads that compare so."""
    return _IF_THREAD.format(how=how, thread=thread, then=then)


def _only(edit: PtxEditor, how: str, thread: int) -> None:
    """The wait is that of some threads."""
    wait = _wait(edit)
    edit.drop(wait)
    edit.insert_after(wait, _for(how, thread, "@mine griddepcontrol.wait;"))


def _workspace(edit: PtxEditor) -> str:
    """The register that holds the workspace's address from the start: the third pointer behind the tensor maps."""
    edit.find(r"atom\.global")
    return operand_texts(edit.find(r"ld\.param\.b64", least=3)[2])[0]


def _clear_early(edit: PtxEditor, what: str) -> None:
    """The TMA warp alone waits, and one thread of the epilogue clears 4 bytes at ``what`` before that."""
    edit.insert_before(_wait(edit), _for("eq", 0, f"@mine st.global.b32 {what}, 0;"))
    _only(edit, "ge", TMA_THREADS)


@mutation("Nobody waits for the launch before.", "early", RACE, cause=NO_WAIT)
def no_launch_wait(edit: PtxEditor) -> None:
    edit.drop(_wait(edit))


@mutation(
    "Only the epilogue warps wait: the TMA warp loads what the launch before still writes.",
    "early", RACE, cause="TMA load of tma_warp",
)  # fmt: skip
def launch_wait_of_the_epilogue(edit: PtxEditor) -> None:
    _only(edit, "lt", MMA_THREADS)


@mutation(
    "The TMA warp waits only behind its first load of A, the others not at all.",
    "early", RACE, cause="of act: TMA load of tma_warp",
)  # fmt: skip
def launch_wait_behind_a_load(edit: PtxEditor) -> None:
    edit.drop(_wait(edit))
    edit.insert_after(edit.loads("A")[0], "griddepcontrol.wait;")


@mutation(
    "Only the TMA warp waits, and the epilogue clears the first elements of y before anybody has.",
    "early", RACE, cause="of y: st.global",
)  # fmt: skip
def y_cleared_early(edit: PtxEditor) -> None:
    store = edit.find(r"cp\.async\.bulk\.tensor\.\dd\.global")[0]
    made = edit.source(edit.source(store, 0), 1)
    if made.tokens[0] != "mov":
        raise NotApplicable("cannot follow the tensor map of y to its parameter")
    load = f"ld.param.b64 y, [{operand_texts(made)[1]}];"  # the first word of a tensor map is the tensor's address
    text = _for("eq", 0, "@mine st.global.b32 [y], 0;")
    edit.insert_before(
        _wait(edit), text.replace("{ ", "{ .reg .b64 y; ", 1).replace("mov.u32", f"{load} mov.u32", 1)
    )
    _only(edit, "ge", TMA_THREADS)


@mutation(
    "Only the TMA warp waits, and the epilogue resets a split counter before anybody has.",
    "early", RACE, cause="of workspace: st.global",
)  # fmt: skip
def counter_cleared_early(edit: PtxEditor) -> None:
    _clear_early(edit, f"[{_workspace(edit)}]")


@mutation(
    "Only the TMA warp waits, and the epilogue overwrites a partial sum that the launch before may still read.",
    "early", RACE, cause="of workspace: st.global",
)  # fmt: skip
def partial_overwritten_early(edit: PtxEditor) -> None:
    _clear_early(edit, f"[{_workspace(edit)}+1024]")


@mutation("Only the TMA warp waits for the launch before.", "early", SURVIVES, reason="What the other warps touch "
          "before the first accumulator is full are wcscale and bias, which are weights; the accumulator follows MMAs "
          "of what the TMA warp has loaded behind its wait, by mbarriers and commits.")  # fmt: skip
def launch_wait_of_the_tma_warp(edit: PtxEditor) -> None:
    _only(edit, "ge", TMA_THREADS)


@mutation("One warp waits for the launch before, ahead of the barrier of the CTA.", "early", SURVIVES,
          reason="The barrier that shows the initialised mbarriers to all warps orders them behind that "
          "wait as well.")  # fmt: skip
def launch_wait_before_the_barrier(edit: PtxEditor) -> None:
    wait = _wait(edit)
    edit.drop(wait)
    anchor = edit.preceding(wait, r"bar\.sync|barrier\.cluster\.arrive")
    edit.insert_before(anchor, _for("lt", 32, "@mine griddepcontrol.wait;"))


@mutation("Every CTA lets the next launch begin at once, before its own wait.", "early", SURVIVES, reason="How early "
          "the next launch begins is free: all that it does before its own wait is to read weights, and the end that "
          "it waits for is that of warps that have waited.")  # fmt: skip
def dependents_launched_at_once(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"griddepcontrol\.launch_dependents")[0])
    edit.insert_before(edit.instrs[0], "griddepcontrol.launch_dependents;")


@mutation("No CTA lets the next launch begin before it ends.", "early", SURVIVES, reason="The end of a CTA does it; "
          "only time is lost.")  # fmt: skip
def dependents_never_launched(edit: PtxEditor) -> None:
    edit.drop(edit.find(r"griddepcontrol\.launch_dependents")[0])
