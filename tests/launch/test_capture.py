"""Captured launches against values worked out by hand for small kernels."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build.dsl_compile import (
    CompiledFunction,
    CompileError,
    capture_function,
    compile_for_capture,
    compile_function,
)
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import ARCHS, SM100A
from kernel_space.core.arguments import Argument, TensorValue, arguments_from_header, pack
from kernel_space.core.errors import InputError
from kernel_space.launch.capture import CaptureError, CaptureRuntime, HostCallError, Launch, load, load_bytes
from kernel_space.launch.ptx_entries import Parameter, entries
from kernel_space.launch.runtime_symbols import (
    CUDA_RUNTIME_SYMBOLS,
    RUNTIME_SYMBOLS,
    CudaRuntime,
    CudaUnavailableError,
)
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

SRC, DST, STREAM = 0x7F00_0000_0000, 0x1234_5600, 77
PROBLEM_CLASS = GemmProblem.class_of(r=0)


def compile_tma_copy(prefix: str = "copy", **knobs: Any) -> CompiledFunction:
    from tests.kernels import tma_copy

    function, arguments = tma_copy.host_function(KernelConfigSm100a(**knobs), PROBLEM_CLASS, SM100A)
    dsl_function, artifacts = compile_function(function, arguments, {}, arch="sm_100a", prefix=prefix)
    assert artifacts.header is not None
    return CompiledFunction(
        artifacts=artifacts, arguments=arguments_from_header(artifacts.header), dsl_function=dsl_function
    )


@pytest.fixture(scope="module")
def dsl() -> None:
    """What compiles asks for it: a machine with a card often has no compiler."""
    if importlib.util.find_spec("cutlass") is None:
        pytest.skip("the CuTe DSL is not installed")
    import_dsl("sm_100a")


@pytest.fixture(scope="module")
def plain(dsl: None) -> CompiledFunction:
    return compile_tma_copy(cluster_shape_mn=(1, 1))


@pytest.fixture(scope="module")
def clustered(dsl: None) -> CompiledFunction:
    return compile_tma_copy(cluster_shape_mn=(2, 1), use_pdl=True)


def launches_of(compiled: CompiledFunction, *shapes: tuple[int, int]) -> list[Launch]:
    runtime = CaptureRuntime(compiled.ptx)
    with compiled.load(runtime) as loaded:
        for m, n in shapes:
            loaded.call(SRC, DST, m, n, STREAM)
    return runtime.launches


def test_one_object_at_three_shapes(plain: CompiledFunction) -> None:
    """64x64 tiles: 1024x512 is 16x8 tiles, 100x72 is 2x2, 65x8 is 2x1."""
    launches = launches_of(plain, (1024, 512), (100, 72), (65, 8))
    assert [launch.grid for launch in launches] == [(16, 8, 1), (2, 2, 1), (2, 1, 1)]
    for launch, (m, n) in zip(launches, [(1024, 512), (100, 72), (65, 8)], strict=True):
        assert (launch.cluster, launch.block, launch.stream) == ((1, 1, 1), (32, 1, 1), STREAM)
        assert launch.smem_bytes == 1024 + 64 * 64 * 2  # the tile is aligned to 1024 behind the barrier
        assert launch.attributes == {"programmatic_stream_serialization": 0, "cooperative": 0}
        assert sorted(launch.tensor_maps) == [0, 2]
        for index, address in ((0, SRC), (2, DST)):
            tensor_map = launch.tensor_maps[index]
            assert tensor_map.address == address
            assert (tensor_map.dims, tensor_map.strides) == ((n, m), (2 * n,))
            assert (tensor_map.box, tensor_map.element_strides) == ((64, 64), (1, 1))
            assert (tensor_map.element_type.name, tensor_map.swizzle_bytes) == ("F16", 128)
            assert tensor_map.is_large == (m * n * 2 >= 131072)
            assert tensor_map.box_bytes == 8192


def test_other_parameters_are_the_tensor_shapes(plain: CompiledFunction) -> None:
    """Parameters 1 and 3 are the coordinate tensors of source and destination: two run-time sizes each."""
    (launch,) = launches_of(plain, (100, 72))
    assert [len(data) for data in launch.params] == [128, 8, 128, 8]
    assert launch.params[1] == launch.params[3] == struct.pack("<2i", 100, 72)


def test_parameter_sizes_agree_with_the_cubin(plain: CompiledFunction) -> None:
    """Second witness for the PTX ``.param`` list: EIATTR_KPARAM_INFO (0x17) records of the cubin."""
    from kernel_space.launch.elf import read_elf

    (section,) = [s for s in read_elf(plain.cubin).sections if s.name.startswith(".nv.info.")]
    sizes: dict[int, int] = {}
    data, at = section.data, 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if (form, attribute) == (4, 0x17):
            _, ordinal, _, flags = struct.unpack_from("<IHHI", data, at + 4)
            sizes[ordinal] = flags >> 18
        at += 4 + (size if form == 4 else 0)
    (launch,) = launches_of(plain, (64, 64))
    assert [sizes[i] for i in sorted(sizes)] == [len(param) for param in launch.params]


def test_cluster_and_programmatic_launch(clustered: CompiledFunction) -> None:
    """Three tiles along M in clusters of two: the grid is rounded up to four."""
    (launch,) = launches_of(clustered, (130, 64))
    assert (launch.grid, launch.cluster) == ((4, 1, 1), (2, 1, 1))
    assert launch.attributes == {"programmatic_stream_serialization": 1, "cooperative": 0}


def test_several_objects_of_one_prefix_in_one_process(
    plain: CompiledFunction, clustered: CompiledFunction
) -> None:
    """Interleaved calls: each object keeps to its own code and its own runtime."""
    first, second = CaptureRuntime(plain.ptx), CaptureRuntime(clustered.ptx)
    with plain.load(first) as a, clustered.load(second) as b:
        for m in (64, 192):
            a.call(SRC, DST, m, 64, 0)
            b.call(SRC, DST, m, 64, 0)
    assert [launch.grid for launch in first.launches] == [(1, 1, 1), (3, 1, 1)]
    assert [launch.grid for launch in second.launches] == [(2, 1, 1), (4, 1, 1)]


def test_load_reads_arguments_from_the_header_beside_the_object(
    plain: CompiledFunction, tmp_path: Path
) -> None:
    (tmp_path / "kernel.o").write_bytes(plain.artifacts.object_code)
    (tmp_path / "kernel.h").write_text(plain.artifacts.header or "")
    runtime = CaptureRuntime(plain.ptx)
    with load(tmp_path / "kernel.o", "copy", runtime) as loaded:
        assert [(a.name, a.kind) for a in loaded.arguments or ()] == [
            ("src", "pointer"),
            ("dst", "pointer"),
            ("m", "int32"),
            ("n", "int32"),
            ("stream", "stream"),
        ]
        loaded.call(SRC, DST, 64, 64, 0)
    assert runtime.launches[0].grid == (1, 1, 1)


def test_bad_calls_are_one_clear_line(plain: CompiledFunction) -> None:
    with plain.load(CaptureRuntime(plain.ptx)) as loaded:
        with pytest.raises(InputError, match=r"5 values are needed \(src, dst, m, n, stream\), got 2"):
            loaded.call(SRC, DST)
        with pytest.raises(InputError, match="argument m must fit int32, got 2147483648"):
            loaded.call(SRC, DST, 2**31, 64, 0)
        with pytest.raises(InputError, match="argument n .* must be an integer, got 6.5"):
            loaded.call(SRC, DST, 64, 6.5, 0)
    with pytest.raises(InputError, match="is closed"):
        loaded.call(SRC, DST, 64, 64, 0)
    with pytest.raises(InputError, match="is the prefix right"):
        load_bytes(plain.artifacts.object_code, "other", CaptureRuntime(plain.ptx))
    with pytest.raises(InputError, match="not an ELF64 file"):
        load_bytes(b"garbage", "copy", CaptureRuntime(plain.ptx))


def test_an_error_inside_a_callback_reaches_the_caller(plain: CompiledFunction) -> None:
    """A PTX without the kernel: the launch callback fails in the middle of the host code."""
    with (
        plain.load(CaptureRuntime(".visible .entry other()\n{\n}")) as loaded,
        pytest.raises(CaptureError, match=r"kernel \w+ is not in the PTX; it has other"),
    ):
        loaded.call(SRC, DST, 64, 64, 0)


def test_an_unsupported_runtime_function_is_refused_before_linking(plain: CompiledFunction) -> None:
    data = plain.artifacts.object_code.replace(b"_cudaGetDevice\0", b"_cudaGetDevicf\0")
    with pytest.raises(InputError, match="not supported: _cudaGetDevicf"):
        load_bytes(data, "copy", CaptureRuntime(plain.ptx))


# -- any CuTe DSL function ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tensors(dsl: None) -> tuple[Any, Any, Any]:
    """y with a run-time size, x with a static one, and the torch tensors that own the memory."""
    import torch
    from cutlass.cute.runtime import from_dlpack

    y, x = torch.zeros(100), torch.ones(100)
    return from_dlpack(y).mark_layout_dynamic(), from_dlpack(x), (y, x)


@pytest.fixture(scope="module")
def elementwise(tensors: tuple[Any, Any, Any]) -> CompiledFunction:
    import cuda.bindings.driver as cuda

    from tests.kernels.elementwise import three_launches

    y, x, _ = tensors
    return compile_for_capture(three_launches, y, x, 1.5, 7, cuda.CUstream(0))


def check_three_launches(launches: list[Launch], y: int, x: int, n: int, value: float) -> None:
    assert [launch.grid[0] for launch in launches] == [-(-n // 128), -(-n // 64), -(-n // 32)]
    assert [launch.block[0] for launch in launches] == [128, 64, 32]
    assert [launch.attributes["cooperative"] for launch in launches] == [0, 1, 0]
    assert len({launch.kernel_name for launch in launches}) == 3
    fill_y, add, fill_x = launches
    for launch in (fill_y, add):  # address and run-time size, padded to 16 bytes
        assert launch.params[0][:12] == struct.pack("<Qi", y, n)
        assert len(launch.params[0]) == 16
    assert add.params[1] == fill_x.params[0] == struct.pack("<Q", x)
    assert fill_y.params[1] == fill_x.params[1] == struct.pack("<f", value)


def test_several_launches_of_one_function(
    elementwise: CompiledFunction, tensors: tuple[Any, Any, Any]
) -> None:
    import cuda.bindings.driver as cuda

    y, x, (memory_y, memory_x) = tensors
    launches = capture_function(elementwise, y, x, 2.5, 8, cuda.CUstream(5))
    check_three_launches(launches, memory_y.data_ptr(), memory_x.data_ptr(), 100, 2.5)
    assert {launch.stream for launch in launches} == {5}


def test_tensors_through_the_header_alone(elementwise: CompiledFunction) -> None:
    """The same object called with plain addresses and sizes, as where the DSL is not installed."""
    assert elementwise.arguments == (
        Argument("y", "tensor", dynamic_shapes=1),
        Argument("x", "tensor"),
        Argument("value", "float32"),
        Argument("repeats", "int64"),
        Argument("stream", "stream"),
    )
    runtime = CaptureRuntime(elementwise.ptx)
    with elementwise.load(runtime) as loaded:
        loaded.call(TensorValue(0x1000, (1000,)), TensorValue(0x2000), 0.5, 2**40, 0)
    check_three_launches(runtime.launches, 0x1000, 0x2000, 1000, 0.5)


def test_a_tuple_argument_passes_its_run_time_entries(tensors: tuple[Any, Any, Any]) -> None:
    import cutlass

    from tests.kernels.elementwise import fill_shape

    y, _, _ = tensors
    compiled = compile_for_capture(fill_shape, y, (3, cutlass.Int32(4)))
    assert [argument.name for argument in compiled.arguments or ()] == ["y", "shape[0]"]
    (launch,) = capture_function(compiled, y, (3, cutlass.Int32(9)))
    assert launch.grid == (9, 1, 1)


def test_a_compiler_error_is_one_line(tensors: tuple[Any, Any, Any]) -> None:
    from tests.kernels.elementwise import fill_shape

    with pytest.raises(CompileError) as caught:
        compile_for_capture(fill_shape, tensors[0], (3,))
    assert "tuple index out of range" in str(caught.value)
    assert "\n" not in str(caught.value)


# -- parts -------------------------------------------------------------------------------------------------

HEADER = """
typedef struct {
    void *data;
    int64_t dynamic_shapes[2];
    int32_t dynamic_strides[1];
} p_Tensor_a_t;
typedef struct {
    p_Tensor_a_t elements[2];
    int32_t count;
} p_TensorList_a_t;
static inline int32_t cute_dsl_p_wrapper(p_Kernel_Module_t *module, p_TensorList_a_t *a, void *q, uint8_t f) {
    int32_t ret = 0;
    void *args[5] = {
        &a->elements[0], &a->elements[1], &q, &f,
        &ret
    };
"""


def test_header_with_a_tensor_list_and_mixed_widths() -> None:
    tensor = {"dynamic_shapes": 2, "dynamic_strides": 1, "shape_bits": 64, "stride_bits": 32}
    assert arguments_from_header(HEADER) == (
        Argument("a[0]", "tensor", **tensor),
        Argument("a[1]", "tensor", **tensor),
        Argument("q", "pointer"),
        Argument("f", "uint8"),
    )


def test_header_of_something_else_is_refused() -> None:
    with pytest.raises(InputError, match="no wrapper function"):
        arguments_from_header("int main();")
    with pytest.raises(InputError, match=r"passes '&f' of type '__half_raw'"):
        arguments_from_header(HEADER.replace("uint8_t f", "__half_raw f"))


def test_a_tensor_is_packed_as_c_lays_it_out() -> None:
    argument = Argument("a", "tensor", dynamic_shapes=1, dynamic_strides=1)
    value = TensorValue(0x1122, (3,), (5,))  # int32 size, then 4 bytes of padding, then int64 stride
    packed = pack(argument, value)
    assert ctypes.string_at(ctypes.addressof(packed), ctypes.sizeof(packed)) == struct.pack(
        "<Qi4xq", 0x1122, 3, 5
    )
    with pytest.raises(InputError, match="tensor a has 1 dynamic sizes, got 0"):
        pack(argument, TensorValue(0x1122))


def test_ptx_parameter_declarations() -> None:
    ptx = """
    .visible .entry first( // a comment with .entry other(
        .param .align 64 .b8 first_param_0[128],
        .param .u32 first_param_1,
        .param .u64 .ptr .global .align 16 first_param_2, .param .f32 p3
    )
    .reqntid 32, 1, 1
    { ret; }
    .visible .entry second() { ret; }
    """
    assert entries(ptx) == {
        "first": (
            Parameter("first_param_0", 128, 64),
            Parameter("first_param_1", 4, 4),
            Parameter("first_param_2", 8, 8),
            Parameter("p3", 4, 4),
        ),
        "second": (),
    }
    with pytest.raises(InputError, match="cannot read the PTX parameter"):
        entries(".entry f(.param .q7 x)\n{}")


def test_cuda_runtime_says_what_is_missing() -> None:
    def absent(name: str) -> Any:
        raise OSError(name)

    with pytest.raises(CudaUnavailableError, match=r"no CUDA runtime library .* tried libcudart\.so\.13"):
        CudaRuntime(open_library=absent)


def test_cuda_runtime_binds_each_symbol_to_its_function() -> None:
    """A stand-in library per name, whose functions have addresses made up here."""

    class Library:
        def __init__(self, base: int, names: list[str]) -> None:
            for i, name in enumerate(names):
                setattr(self, name, ctypes.c_void_p(base + i))

    runtime_names = [
        "cudaLibraryLoadData",
        "cudaLibraryGetKernel",
        "cudaGetDevice",
        "cudaDeviceGetAttribute",
        "cudaFuncSetAttribute",
        "cudaKernelSetAttributeForDevice",
        "cudaLaunchKernelExC",
    ]
    libraries = {
        "libcudart.so.13": Library(1000, runtime_names),
        "libcuda.so.1": Library(2000, ["cuKernelGetAttribute"]),
    }
    addresses = CudaRuntime(open_library=libraries.__getitem__).addresses()
    assert addresses["_cudaLaunchKernelEx"] == 1006
    assert addresses["_cudaLibraryLoadData"] == 1000
    assert addresses["_cuKernelGetAttribute"] == 2000
    assert set(addresses) == set(RUNTIME_SYMBOLS)
    assert len(CUDA_RUNTIME_SYMBOLS) == 7


@pytest.mark.gpu
@pytest.mark.parametrize(
    "knobs", [{"cluster_shape_mn": (1, 1)}, {"cluster_shape_mn": (2, 1), "use_pdl": True}]
)
def test_a_loaded_object_runs_on_the_card(dsl: None, knobs: dict[str, Any]) -> None:
    """The TMA copy through the real CUDA runtime, against torch."""
    import torch

    from tests.kernels import tma_copy

    major, minor = torch.cuda.get_device_capability()
    record = next(record for record in ARCHS.values() if record.compute_capability == (major, minor))
    function, arguments = tma_copy.host_function(KernelConfigSm100a(**knobs), PROBLEM_CLASS, record)
    _, artifacts = compile_function(function, arguments, {}, arch=record.name, prefix="card")
    stream = torch.cuda.current_stream().cuda_stream
    with load_bytes(artifacts.object_code, "card", CudaRuntime(), arguments=tma_copy.ARGUMENTS) as loaded:
        for m, n in ((1024, 512), (100, 72), (65, 8), (1, 8)):
            source = torch.randn(m, n, device="cuda").half()
            target = torch.zeros_like(source)
            loaded.call(source.data_ptr(), target.data_ptr(), m, n, stream)
            torch.cuda.synchronize()
            assert torch.equal(source, target)
        with pytest.raises(HostCallError, match="CUDA error 1"):
            loaded.call(0, 0, 64, 0, stream)
