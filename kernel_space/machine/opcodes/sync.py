"""Barriers, fences, dependent launch and launch control. PTX ISA 9.7.13, "Parallel Synchronization"."""

from __future__ import annotations

from kernel_space.machine.opcodes.memory import address
from kernel_space.machine.opcodes.move import check_members
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Mem, Operand, Vec
from kernel_space.machine.values.lanes import FULL

_SCOPES = ("cta", "cluster", "gpu", "sys")
_SHARED = ("shared", "shared::cta", "shared::cluster")


def leave_by(c: Writer, call: str) -> None:
    """End the block with a call that returns the next block or the reason to wait."""
    if c.instr is not None and c.instr.guard is not None:
        raise c.fail("a guarded barrier is not modelled")
    assert c.block is not None
    target = c.block.fall if c.block.fall is not None else -1
    c.leave(call.replace("NEXT", str(target)), c.graph.live_out(c.block))


def uniform(c: Writer, text: str, *operands: Operand) -> str:
    """The value of all active lanes; ``Unsupported`` where they differ."""
    return f"one_value(w, {text}, {c.mask}, {c.site})" if any(c.varies(item) for item in operands) else text


def converged(c: Writer) -> None:
    """``.aligned``: every lane of the warp has to execute the same one."""
    c.meet()
    if not c.converged:
        c.emit(f"aligned(w, {c.mask}, {c.site})")


@opcode("bar", "barrier", "barrier.cta")
def bar(c: Writer, i: Instr, m: Modifiers) -> None:
    if m.take("warp"):
        m.need("sync")
        check_members(c, i.operands[0])
        return c.emit(f"warp_synced(w, {c.mask})")
    how = m.need("sync", "arrive")
    if m.take("aligned") or i.tokens[0] == "bar":
        converged(c)
    number = uniform(c, c.read(i.operands[0]), i.operands[0])
    count = uniform(c, c.read(i.operands[1]), i.operands[1]) if len(i.operands) > 1 else "0"
    if how == "arrive":
        return c.emit(f"bar_arrive(w, {number}, {count}, {c.site})")
    leave_by(c, f"bar_sync(w, {number}, {count}, NEXT, {c.site})")


@opcode("deposit")
def deposit(c: Writer, i: Instr, m: Modifiers) -> None:
    """First part of ``bar.red`` (``guards.py``)."""
    m.need("popc", "and", "or")
    number = uniform(c, c.read(i.operands[0]), i.operands[0])
    c.emit(f"bar_deposit(w, {number}, {c.predicate(i.operands[1])}, {c.mask})")


@opcode("deposited")
def deposited(c: Writer, i: Instr, m: Modifiers) -> None:
    """Last part of ``bar.red``: (threads whose predicate was true, threads)."""
    match m.need("popc", "and", "or"):
        case "popc":
            c.write(i.operands[0], "w.deposited[0]")
        case "and":
            c.write(i.operands[0], f"{FULL} if w.deposited[0] == w.deposited[1] else 0")
        case _:
            c.write(i.operands[0], f"{FULL} if w.deposited[0] else 0")


@opcode("barrier.cluster.arrive")
def cluster_arrive(c: Writer, i: Instr, m: Modifiers) -> None:
    order = m.take("release", "relaxed") or "release"
    if m.take("aligned"):
        converged(c)
    c.emit(f"cluster_arrive(w, {order == 'release'}, {c.mask}, {c.site})")


@opcode("barrier.cluster.wait")
def cluster_wait(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("acquire")
    if m.take("aligned"):
        converged(c)
    c.emit(f"if cluster_wait(w, {c.site}): return -2")


@opcode("mbarrier.init")
def mbarrier_init(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("shared", "shared::cta", "b64")
    _by_lane(c, i, "mbarrier_init(w, {operands}, {site})")


@opcode("mbarrier.inval")
def mbarrier_inval(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("shared", "shared::cta", "b64")
    _by_lane(c, i, "mbarrier_inval(w, {operands}, {site})")


def _by_lane(c: Writer, i: Instr, call: str) -> None:
    """Once where the lanes agree; else each lane has a barrier of its own."""
    operand, *amounts = i.operands
    texts = [address(c, operand), *(c.read(item) for item in amounts)]
    assert isinstance(operand, Mem)
    if not any(c.varies(item) for item in (operand.base, *amounts)):
        return c.emit(call.format(operands=", ".join(texts), mask=c.mask, site=c.site))
    own = ", ".join(f"first_lane({text}, 1 << lane)" for text in texts)
    c.emit(f"for lane in lane_list({c.mask}): {call.format(operands=own, mask='1 << lane', site=c.site)}")


def _where(c: Writer, i: Instr, at: int) -> str:
    operand = i.operands[at]
    assert isinstance(operand, Mem)
    return uniform(c, address(c, operand), operand.base)


@opcode("mbarrier.arrive", "mbarrier.arrive_drop")
def mbarrier_arrive(c: Writer, i: Instr, m: Modifiers) -> None:
    drop = i.tokens[1] == "arrive_drop"
    expects = bool(m.take("expect_tx"))
    m.ignore("noComplete")
    order = m.take("release", "relaxed") or "release"
    scope = m.take(*_SCOPES) or "cluster"  # the ISA's default is the CTA; NVIDIA's remote arrivals name none
    m.ignore(*_SHARED, "b64")
    release = scope if order == "release" else ""
    at = 0 if isinstance(i.operands[0], Mem) else 1
    operand = i.operands[at]
    assert isinstance(operand, Mem)
    amount = c.read(i.operands[at + 1]) if len(i.operands) > at + 1 else "1"
    where = address(c, operand)
    call = f"mbarrier_arrive(w, {where}, {amount}, {expects}, {drop}, {release!r}, {c.mask}, {c.site})"
    if at and hasattr(i.operands[0], "slot"):
        c.write(i.operands[0], call)
    else:
        c.emit(call)


@opcode("mbarrier.expect_tx")
def mbarrier_expect_tx(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("relaxed", *_SCOPES, *_SHARED, "b64")
    _by_lane(c, i, "mbarrier_expect_tx(w, {operands}, {mask}, {site})")


@opcode("mbarrier.complete_tx")
def mbarrier_complete_tx(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("relaxed", *_SCOPES, *_SHARED, "b64")
    _by_lane(c, i, "mbarrier_complete_tx(w, {operands}, {mask}, {site})")


@opcode("mbarrier.test_wait", "mbarrier.try_wait")
def mbarrier_wait(c: Writer, i: Instr, m: Modifiers) -> None:
    """In a loop that does nothing else the warp sleeps until the phase completes; else it is one look."""
    parity = bool(m.take("parity"))
    order = m.take("acquire", "relaxed") or "acquire"
    m.ignore(*_SCOPES, *_SHARED, "b64")
    where = _where(c, i, 1)
    phase = uniform(c, c.read(i.operands[2], 32 if parity else 64), i.operands[2])
    arguments = f"{where}, {phase}, {parity}, {order == 'acquire'}, {c.mask}, {c.site}"
    assert c.block is not None
    if c.block.spin and c.block.instrs[0] is i:
        c.emit(f"if mbarrier_wait(w, {arguments}): return -2")
        c.write(i.operands[0], str(FULL))
    else:
        c.write(i.operands[0], f"mbarrier_look(w, {arguments})")


@opcode("mbarrier.pending_count")
def mbarrier_pending_count(c: Writer, i: Instr, m: Modifiers) -> None:
    """Of the state that an arrival returned: the arrivals that were pending before it (measured on Hopper)."""
    m.need("b64")
    c.write(i.operands[0], f"resize({c.read(i.operands[1], 64)} >> 32, 32, 32, False)")


@opcode("fence", "membar")
def fence(c: Writer, i: Instr, m: Modifiers) -> None:
    """Fences move no data here; the race checker judges them."""
    if m.take("proxy"):
        kind = m.need("async", "async::generic", "alias", "tensormap::generic", "generic")
        space = m.take("shared::cta", "shared::cluster", "global", "generic")
        m.ignore("acquire", "release", "sync_restrict::shared::cta", "sync_restrict::shared::cluster",
                 "cluster", "gpu", "sys", "cta")  # fmt: skip
        return c.emit(f"proxy_fence(w, {kind!r}, {space!r}, {c.mask}, {c.site})")
    if m.take("mbarrier_init"):
        m.ignore("release", "cluster")
        return c.emit(f"init_fence(w, {c.site})")
    order = m.take("acq_rel", "sc", "acquire", "release") or "sc"
    m.ignore("sync_restrict::shared::cta", "sync_restrict::shared::cluster")
    scope = m.need(*_SCOPES, "gl")
    c.emit(f"memory_fence(w, {order!r}, {scope!r}, {c.mask}, {c.site})")


@opcode("griddepcontrol.wait")
def griddepcontrol_wait(c: Writer, i: Instr, m: Modifiers) -> None:
    """The launch before has ended and its memory is visible: at once where it does not overlap this one."""
    c.emit(f"if launch_wait(w, {c.mask}, {c.site}): return -2")


@opcode("griddepcontrol.launch_dependents")
def griddepcontrol_launch(c: Writer, i: Instr, m: Modifiers) -> None:
    """Lets the next launch begin, once every CTA has executed it or has ended; it orders no memory."""
    c.emit("if launch_dependents(w): return -2")


@opcode("nanosleep")
def nanosleep(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("u32")
    leave_by(c, "pause(w, NEXT)")


@opcode("trap", "brkpt")
def trap(c: Writer, i: Instr, m: Modifiers) -> None:
    c.emit("trap(w)")


@opcode("clusterlaunchcontrol.try_cancel")
def try_cancel(c: Writer, i: Instr, m: Modifiers) -> None:
    """Asks for the next cluster of the grid: 16 bytes to shared memory, completion on an mbarrier."""
    m.need("async")
    m.ignore(*_SHARED, "mbarrier::complete_tx::bytes", "b128")
    multicast = bool(m.take("multicast::cluster::all"))
    c.emit(f"try_cancel(w, {_where(c, i, 0)}, {_where(c, i, 1)}, {multicast}, {c.mask}, {c.site})")


@opcode("clusterlaunchcontrol.query_cancel.is_canceled")
def query_is_canceled(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("pred", "b128")
    c.write(i.operands[0], f"{FULL} if {c.read(i.operands[1], 128)} & 1 else 0")


@opcode("clusterlaunchcontrol.query_cancel.get_first_ctaid", "clusterlaunchcontrol.query_cancel")
def query_first_ctaid(c: Writer, i: Instr, m: Modifiers) -> None:
    """Words 1 to 3 of the response, as ``clc`` writes it."""
    one = m.take("get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z")
    m.ignore("v4", "b32", "b128")
    handle, target = c.read(i.operands[1], 128), i.operands[0]
    if one:
        return c.write(target, f"{handle} >> {32 * ('xyz'.index(one[-1]) + 1)} & {FULL}")
    if not isinstance(target, Vec):
        raise c.fail("needs a vector destination")
    for number, item in enumerate(target.items[:3]):
        c.write(item, f"{handle} >> {32 * (number + 1)} & {FULL}")
