"""``from kernel_space.machine import ...``: the public entry, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import kernel_space.machine

TEXT = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry double_it(.param .u64 place) {
.reg .b64 %rd<2>;
.reg .b32 %r<3>;
ld.param.u64 %rd1, [place];
ld.global.b32 %r1, [%rd1];
shl.b32 %r2, %r1, 1;
st.global.b32 [%rd1], %r2;
ret;
}
"""


def test_a_text_runs_by_the_entry() -> None:
    from kernel_space.machine import SimResult, run_ptx

    word = np.array([21], dtype=np.int32)
    result = run_ptx(TEXT, word, grid=(1, 1, 1), block=(1, 1, 1))
    assert isinstance(result, SimResult) and result.ok, str(result)
    assert word.tolist() == [42]


def test_the_entry_is_the_module_that_has_it() -> None:
    from kernel_space.machine import run_compiled
    from kernel_space.machine.run import run

    assert run_compiled is run.run_compiled
    assert set(kernel_space.machine.__all__) == {"SimResult", "run_compiled", "run_ptx"}


def test_another_name_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'kernel_space.machine' has no attribute 'run_it'"):
        _ = kernel_space.machine.run_it  # type: ignore[attr-defined]


def test_a_submodule_is_imported_without_the_machine() -> None:
    check = (
        "import sys, kernel_space.machine.values.faults; "
        "assert not {'numpy', 'kernel_space.machine.run.machine'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
