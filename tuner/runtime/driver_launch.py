"""Objects launch through the driver: ``cuLaunchKernelEx`` in the place of the runtime's ``cudaLaunchKernelExC``.

The runtime's function does the same and more, on every call. A launch configuration and a kernel handle are the same
in both (``cudaLaunchConfig_t`` and ``CUlaunchConfig`` agree in layout for shared memory below 4 GiB,
``cudaKernel_t`` is a ``CUkernel``). What the runtime does in addition and is needed once per thread is to make the
device's context current; where there is none the driver says so (201) and the runtime's function is called.
"""

from __future__ import annotations

import ctypes
import functools

import llvmlite.binding as llvm

from kernel_space.runtime_symbols import CudaRuntime
from tuner.runtime.trampoline import compile_ir

_LAUNCH = "_cudaLaunchKernelEx"
_INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT and cudaErrorDeviceUninitialized


class LaunchRuntime(CudaRuntime):
    """The installed CUDA runtime and driver, with the shorter way to launch."""

    def addresses(self) -> dict[str, int]:
        addresses = super().addresses()
        driver = ctypes.cast(self.driver.cuLaunchKernelEx, ctypes.c_void_p).value or 0
        engine = _shim(driver, addresses[_LAUNCH])
        return {**addresses, _LAUNCH: engine.get_function_address("launch_kernel")}


@functools.cache
def _shim(driver: int, runtime: int) -> llvm.ExecutionEngine:
    """Kept for the life of the process: objects that were bound to it may be."""
    return compile_ir(
        f"""
        define i32 @launch_kernel(ptr %config, ptr %kernel, ptr %arguments) {{
            %driver = inttoptr i64 {driver} to ptr
            %code = call i32 %driver(ptr %config, ptr %kernel, ptr %arguments, ptr null)
            %without = icmp eq i32 %code, {_INVALID_CONTEXT}
            br i1 %without, label %again, label %done
        again:
            %runtime = inttoptr i64 {runtime} to ptr
            %other = call i32 %runtime(ptr %config, ptr %kernel, ptr %arguments)
            ret i32 %other
        done:
            ret i32 %code
        }}
        """
    )
