"""The trampoline hands every value over in its place: the oracle is a C callback that reads the vector."""

from __future__ import annotations

import ctypes
import threading

import pytest

from kernel_space.arguments import Argument
from kernel_space.errors import InputError
from kernel_space.kernels import __name__ as kernels_package
from tuner.runtime.trampoline import INTEGERS, POINTERS, SIGNATURE, Static, check_signature, trampoline

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)


class Recorder:
    """A host function that writes down what it is given and returns ``code``."""

    def __init__(self, code: int = 0) -> None:
        self.seen: list[dict[str, int]] = []
        self.code = code
        self.function = HOST_FUNCTION(self._call)
        self.entry = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def _call(self, vector: int, length: int) -> None:
        assert length == len(SIGNATURE) + 1
        addresses = (ctypes.c_void_p * length).from_address(vector)
        ctypes.c_int32.from_address(addresses[-1]).value = self.code
        kinds = {"int32": ctypes.c_int32, "pointer": ctypes.c_uint64, "stream": ctypes.c_uint64}
        self.seen.append(
            {
                argument.name: kinds[argument.kind].from_address(address).value
                for argument, address in zip(SIGNATURE, addresses, strict=False)
            }
        )

    def static(self, *sizes: int) -> Static:
        return Static(self.entry, *sizes)


def call(static: Static, *values: int) -> int:
    return trampoline()(ctypes.addressof(static), *values)


def test_every_value_arrives_in_its_place() -> None:
    recorder = Recorder()
    pointers = [0xFFFF_0000_0000_0000 + 256 * index for index in range(len(POINTERS))]
    static = recorder.static(1, 2, 2**31 - 1, 132)
    assert call(static, *pointers, 0xABCDEF0123456789) == 0
    wanted = {
        **dict(zip(POINTERS, pointers, strict=True)),
        **dict(zip(INTEGERS, (1, 2, 2**31 - 1, 132), strict=True)),
    }
    assert recorder.seen == [{**wanted, "stream": 0xABCDEF0123456789}]


def test_the_error_code_comes_back() -> None:
    recorder = Recorder(code=719)
    assert call(recorder.static(1, 1, 1, 1), *range(11)) == 719


def test_threads_do_not_mix_their_values() -> None:
    recorders = [Recorder() for _ in range(4)]

    def work(index: int) -> None:
        static = recorders[index].static(index, index, index, index)
        for turn in range(300):
            call(static, *[1000 * index + turn] * 11)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, recorder in enumerate(recorders):
        assert [set(seen[name] for name in (*POINTERS, "stream")) for seen in recorder.seen] == [
            {1000 * index + turn} for turn in range(300)
        ]
        assert all(seen["m"] == index for seen in recorder.seen)


@pytest.mark.parametrize("kernel", ["svdquant_gemm_sm100a", "svdquant_gemm_sm90a"])
def test_the_kernels_take_this_signature(kernel: str) -> None:
    import importlib

    assert importlib.import_module(f"{kernels_package}.{kernel}").ARGUMENTS == SIGNATURE


def test_an_object_with_other_arguments_is_refused() -> None:
    check_signature(SIGNATURE)
    for arguments in (None, SIGNATURE[:-1], (*SIGNATURE[1:], Argument("act", "pointer"))):
        with pytest.raises(InputError, match="must take the arguments of svdquant_gemm"):
            check_signature(arguments)
