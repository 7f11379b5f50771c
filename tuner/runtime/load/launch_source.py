"""The launch of a signature in LLVM assembly: see ``trampoline.py``.

Values are named by their number, so that no name of an operator means anything here and signatures of one form have
one source: ``%t0 ...`` addresses of tensors, ``%i0 ...`` integers, both in the signature's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream


def launch_source(
    signature: Signature,
    offsets: Mapping[str, int],
    functions: Mapping[str, int],
    *,
    align: int,
    codes: Mapping[str, int],
) -> str:
    """``offsets``: of the integers in ``static``. ``functions``: addresses of what is called. ``codes``: what comes
    back for a ``wrong`` number of arguments and for a ``misaligned`` address.
    """
    tensors = [part for part in signature.parts if isinstance(part, In | Out)]
    with_workspace = signature.workspace is not None
    return "\n".join(
        [
            "define ptr @launch(ptr %self, ptr %arguments, i64 %count) {",
            "entry:",
            *(f"%{name} = inttoptr i64 {address} to ptr" for name, address in functions.items()),
            f"%right = icmp eq i64 %count, {len(tensors) + (3 if with_workspace else 1)}",
            "br i1 %right, label %read, label %wrong",
            "wrong:",
            f"%wrong.code = call ptr %to_long(i64 {codes['wrong']})",
            "ret ptr %wrong.code",
            "read:",
            *_read_operands(len(tensors), with_workspace),
            *_refusals(tensors, align),
            "br i1 %misaligned, label %refuse, label %go",
            "refuse:",
            f"%refused = call ptr %to_long(i64 {codes['misaligned']})",
            "ret ptr %refused",
            "go:",
            *_fill_vector(signature, offsets),
            *_call_entry(len(signature.parts) + 1, with_workspace),
            "}",
        ]
    )


def _read_operands(tensors: int, with_workspace: bool) -> list[str]:
    """Addresses of all tensors and of the workspace, which is 0 where it is None; the mutex and the stream."""
    names = [f"t{index}" for index in range(tensors)]
    rest = ["workspace", "mutex", "stream"] if with_workspace else ["stream"]
    lines = []
    for index, name in enumerate([*names, *rest]):
        lines.append(f"%{name}.at = getelementptr ptr, ptr %arguments, i64 {index}")
        lines.append(f"%{name}.object = load ptr, ptr %{name}.at")
    lines += [f"%{name} = call i64 %data(ptr %{name}.object)" for name in names]
    lines += [
        "%stream = call i64 %as_pointer(ptr %stream.object)",
        "%static = call ptr %as_pointer(ptr %self)",
    ]
    if with_workspace:
        lines += [
            "%mutex = call ptr %as_pointer(ptr %mutex.object)",
            "%no.workspace = icmp eq ptr %workspace.object, %none",
            "br i1 %no.workspace, label %together, label %with",
            "with:",
            "%workspace.data = call i64 %data(ptr %workspace.object)",
            "br label %together",
            "together:",
            "%workspace = phi i64 [0, %read], [%workspace.data, %with]",
        ]
    return [*lines, f"%or.0 = or i64 {'%workspace' if with_workspace else '0'}, 0"]


def _refusals(tensors: Sequence[In | Out], align: int) -> list[str]:
    """%misaligned: an address is no multiple of ``align``, or is 0 where a tensor must have elements.

    Tensors that may be empty are so together or not at all, those of the same ``empties_of`` if parts say one.
    """
    lines = [f"%or.{index + 1} = or i64 %or.{index}, %t{index}" for index in range(len(tensors))]
    lines += [f"%gone.t{index} = icmp eq i64 %t{index}, 0" for index in range(len(tensors))]
    bad: list[str] = []
    first: dict[str, int] = {}
    for index, part in enumerate(tensors):
        if not getattr(part, "empties", False):
            bad.append(f"%gone.t{index}")
            continue
        one = first.setdefault(getattr(part, "empties_of", ""), index)
        if one != index:
            lines.append(f"%apart.{index} = xor i1 %gone.t{one}, %gone.t{index}")
            bad.append(f"%apart.{index}")
    lines += [
        f"%low = and i64 %or.{len(tensors)}, {align - 1}",
        "%bad.0 = icmp ne i64 %low, 0",
        *(f"%bad.{index + 1} = or i1 %bad.{index}, {one}" for index, one in enumerate(bad)),
    ]
    return [*lines, f"%misaligned = or i1 %bad.{len(bad)}, false"]


def _fill_vector(signature: Signature, offsets: Mapping[str, int]) -> list[str]:
    """Vector and values on the stack; the vector ends with the address of the code that comes back."""
    length = len(signature.parts) + 1
    lines = ["%code = alloca i32", "store i32 0, ptr %code", f"%vector = alloca [{length} x ptr]"]
    values, tensors, integers = [], 0, 0
    for part in signature.parts:
        if isinstance(part, Size | Grid):
            value, integers = f"i{integers}", integers + 1
            lines.append(f"%{value}.value = getelementptr i8, ptr %static, i64 {offsets[part.name]}")
        else:
            if isinstance(part, In | Out):
                value, tensors = f"t{tensors}", tensors + 1
            else:
                value = "stream" if isinstance(part, Stream) else "workspace"
            lines += [f"%{value}.value = alloca i64", f"store i64 %{value}, ptr %{value}.value"]
        values.append(f"%{value}.value")
    for index, value in enumerate([*values, "%code"]):
        lines.append(f"%slot{index} = getelementptr ptr, ptr %vector, i64 {index}")
        lines.append(f"store ptr {value}, ptr %slot{index}")
    return lines


def _call_entry(length: int, with_mutex: bool) -> list[str]:
    call = f"call void %host.function(ptr %vector, i32 {length})"
    before = [
        "%host.function.at = load i64, ptr %static",
        "%host.function = inttoptr i64 %host.function.at to ptr",
        "%thread = call ptr %release()",  # a full launch queue must not stop other threads
    ]
    held = [
        "%held = icmp ne ptr %mutex, null",
        "br i1 %held, label %lock, label %call",
        "lock:",
        "%locked = call i32 %enter(ptr %mutex)",
        "br label %call",
        "call:",
        call,
        "br i1 %held, label %unlock, label %back",
        "unlock:",
        "%unlocked = call i32 %leave(ptr %mutex)",
        "br label %back",
        "back:",
    ]
    return [
        *before,
        *(held if with_mutex else [call]),
        "call void %acquire(ptr %thread)",
        "%result = load i32, ptr %code",
        "%wide = sext i32 %result to i64",
        "%answer = call ptr %to_long(i64 %wide)",
        "ret ptr %answer",
    ]
