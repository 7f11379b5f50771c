"""The trampoline hands every value over in its place: the oracle is a C callback that reads the vector."""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
import time

import pytest
import torch

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.signature import Grid, In, Out, Signature, Size, Stream, Workspace
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE
from tuner.runtime.load import trampoline
from tuner.runtime.load.trampoline import MISALIGNED, WRONG_CALL, Launch, Mutex, Trampoline

ARGUMENTS, POINTERS, INTEGERS = SIGNATURE.abi, SIGNATURE.pointers, SIGNATURE.integers
TRAMPOLINE = Trampoline("svdquant_gemm", SIGNATURE)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)


class Recorder:
    """A host function that writes down what it is given and returns ``code``."""

    def __init__(self, code: int = 0, arguments: tuple[Argument, ...] = ARGUMENTS) -> None:
        self.arguments = arguments
        self.seen: list[dict[str, int]] = []
        self.code = code
        self.function = HOST_FUNCTION(self._call)
        self.entry = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def _call(self, vector: int, length: int) -> None:
        assert length == len(self.arguments) + 1
        addresses = (ctypes.c_void_p * length).from_address(vector)
        ctypes.c_int32.from_address(addresses[-1]).value = self.code
        kinds = {"int32": ctypes.c_int32, "pointer": ctypes.c_uint64, "stream": ctypes.c_uint64}
        self.seen.append(
            {
                argument.name: kinds[argument.kind].from_address(address).value
                for argument, address in zip(self.arguments, addresses, strict=False)
            }
        )

    def launch(self, *sizes: int) -> Launch:
        self.constant = TRAMPOLINE.static(self.entry, *sizes)
        return TRAMPOLINE.launch(self.constant)


def operands(first: int = 0) -> list[torch.Tensor]:
    return [torch.zeros(first + 16 + index) for index in range(len(POINTERS))]


def test_every_value_arrives_in_its_place() -> None:
    recorder, tensors = Recorder(), operands()
    stream = 0xABCDEF0123456789
    assert recorder.launch(1, 2, 2**31 - 1, 132)(*tensors, 0, stream) == 0
    pointers = {name: tensor.data_ptr() for name, tensor in zip(POINTERS, tensors, strict=True)}
    sizes = dict(zip(INTEGERS, (1, 2, 2**31 - 1, 132), strict=True))
    assert recorder.seen == [{**pointers, **sizes, "stream": stream}]


def test_no_workspace_is_address_0() -> None:
    recorder, tensors = Recorder(), operands()
    assert recorder.launch(1, 1, 1, 1)(*tensors[:-1], None, 0, 0) == 0
    assert recorder.seen[0]["workspace"] == 0
    assert recorder.seen[0]["y"] == tensors[-2].data_ptr()


def test_without_a_branch_both_its_operands_are_address_0() -> None:
    recorder, tensors = Recorder(), operands()
    for name in ("lora_act_in", "lora_up"):
        tensors[POINTERS.index(name)] = torch.zeros(5, 0)
    assert recorder.launch(1, 1, 1, 1)(*tensors, 0, 0) == 0
    assert recorder.seen[0]["lora_up"] == recorder.seen[0]["lora_act_in"] == 0


@pytest.mark.parametrize("name", POINTERS[:-1])
def test_an_operand_whose_memory_is_gone_is_not_launched(name: str) -> None:
    recorder, tensors = Recorder(), operands()
    tensors[POINTERS.index(name)].untyped_storage().resize_(0)
    assert recorder.launch(1, 1, 1, 1)(*tensors, 0, 0) == MISALIGNED
    assert not recorder.seen


@pytest.mark.parametrize("index", range(len(POINTERS)), ids=POINTERS)
def test_a_misaligned_address_is_not_launched(index: int) -> None:
    recorder, tensors = Recorder(), operands()
    tensors[index] = torch.zeros(64, dtype=torch.uint8)[8:]
    assert recorder.launch(1, 1, 1, 1)(*tensors, 0, 0) == MISALIGNED
    assert not recorder.seen


def test_a_call_with_other_arguments_is_not_launched() -> None:
    recorder = Recorder()
    assert recorder.launch(1, 1, 1, 1)(*operands(), 0) == WRONG_CALL
    assert not recorder.seen


def shape(problem: object) -> tuple[int, ...]:
    return (1,)


# Names that the launch's own source or Python's would use, and every kind of part in an order of its own.
OTHERS = {
    "outputs first, workspace between": Signature(
        Out("code", "fp16", shape),
        Size("entry"),
        In("count", "fp16", shape, empties=True),
        Workspace("static"),
        In("stream", "fp16", shape, empties=True),
        Out("none", "int32", shape),
        In("vector", "fp16", shape, empties=True),
        Stream("the stream"),
    ),
    "no workspace, no size": Signature(In("x", "fp16", shape), Out("y", "int32", shape), Stream()),
    "an output alone": Signature(Out("y", "int32", shape), Grid(), Stream()),
}


@pytest.mark.parametrize("signature", OTHERS.values(), ids=OTHERS.keys())
def test_every_signature_has_a_launch_of_its_own(signature: Signature) -> None:
    recorder = Recorder(arguments=signature.abi)
    trampoline = Trampoline("other", signature)
    names = [name for name in signature.pointers if name != signature.workspace]
    tensors = {name: torch.zeros(16) for name in names}
    static = trampoline.static(recorder.entry, *range(5, 5 + len(signature.integers)))
    launch, memory, mutex = trampoline.launch(static), torch.zeros(64), Mutex()
    rest = [] if signature.workspace is None else [memory, mutex.address]
    assert launch(*tensors.values(), *rest, 2**63) == 0
    wanted = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    wanted |= {} if signature.workspace is None else {signature.workspace: memory.data_ptr()}
    wanted |= {name: 5 + index for index, name in enumerate(signature.integers)}
    assert recorder.seen == [{**wanted, signature.parts[-1].name: 2**63}]
    assert launch(*tensors.values(), *rest) == WRONG_CALL
    for name in names:
        odd = {**tensors, name: torch.zeros(64, dtype=torch.uint8)[4:]}
        assert launch(*odd.values(), *rest, 0) == MISALIGNED
        gone = {**tensors, name: torch.zeros(0)}
        assert launch(*gone.values(), *rest, 0) == MISALIGNED
    assert len(recorder.seen) == 1


def test_tensors_that_may_be_empty_are_so_together() -> None:
    signature = OTHERS["outputs first, workspace between"]
    recorder, trampoline = Recorder(arguments=signature.abi), Trampoline("other", signature)
    static = trampoline.static(recorder.entry, 1)
    launch, full, none = trampoline.launch(static), torch.zeros(16), torch.zeros(0)
    for empty in itertools.product([False, True], repeat=3):
        first, second, third = (none if one else full for one in empty)
        code = launch(full, first, second, full, third, None, 0, 0)
        assert code == (0 if len(set(empty)) == 1 else MISALIGNED), empty
    assert [seen["stream"] for seen in recorder.seen] == [full.data_ptr(), 0]


def test_signatures_of_one_form_are_compiled_once() -> None:
    def of(*names: str) -> str:
        first, second, size = names
        return Trampoline(
            first, Signature(In(first, "fp16", shape), Out(second, "fp16", shape), Size(size), Stream())
        )._source

    assert of("a", "b", "m") == of("x", "y", "n")


@pytest.mark.parametrize("code", [719, 1, -5])
def test_the_error_code_comes_back(code: int) -> None:
    assert Recorder(code=code).launch(1, 1, 1, 1)(*operands(), 0, 0) == code


def test_threads_do_not_mix_their_values() -> None:
    recorders = [Recorder() for _ in range(4)]
    tensors = [operands(100 * index) for index in range(4)]

    def work(index: int) -> None:
        launch = recorders[index].launch(index, index, index, index)
        for turn in range(300):
            launch(*tensors[index], 0, turn)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, recorder in enumerate(recorders):
        pointers = [tensor.data_ptr() for tensor in tensors[index]]
        assert [seen["stream"] for seen in recorder.seen] == list(range(300))
        assert all([seen[name] for name in POINTERS] == pointers for seen in recorder.seen)
        assert all(seen["m"] == index for seen in recorder.seen)


def test_threads_that_launch_first_at_once_share_one_builtin_s_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that only one of them kept was freed under the builtins of the others."""
    compile_ir, compiled = trampoline.compile_ir, []

    def slowly(source: str) -> object:
        compiled.append(source)
        time.sleep(0.05)
        return compile_ir(source)

    monkeypatch.setattr(trampoline, "_compiled", {})
    monkeypatch.setattr(trampoline, "compile_ir", slowly)
    recorders, begin = [Recorder() for _ in range(4)], threading.Barrier(4)

    def work(recorder: Recorder) -> None:
        begin.wait()
        launch = recorder.launch(1, 2, 3, 4)
        gc.collect()
        assert launch(*operands(), 0, 5) == 0

    threads = [threading.Thread(target=work, args=(recorder,)) for recorder in recorders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert all([seen["stream"] for seen in recorder.seen] == [5] for recorder in recorders)


def test_an_object_with_other_arguments_is_refused() -> None:
    TRAMPOLINE.check(ARGUMENTS)
    for arguments in (None, ARGUMENTS[:-1], (*ARGUMENTS[1:], Argument("act", "pointer"))):
        with pytest.raises(InputError, match="must take the arguments of svdquant_gemm"):
            TRAMPOLINE.check(arguments)
