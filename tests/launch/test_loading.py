"""Which undefined symbols of an object are the process's own."""

from __future__ import annotations

import subprocess
import sys

# As the first thing of a process: LLVM knows no symbol of it before it has made an engine.
PROGRAM = """
from kernel_space.launch.loading import _is_of_the_process
print([_is_of_the_process(name) for name in ("printf", "memcpy", "cuLaunchKernelEx", "no_such_function_at_all")])
"""


def test_functions_of_the_c_library_are_there_for_the_first_object() -> None:
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["[True,", "True,", "False,", "False]"], answer.stdout + answer.stderr
