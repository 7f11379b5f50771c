"""What the project knows of the kernel ``smooth_rows``."""

from __future__ import annotations

from kernel_space.core.kernel import Kernel
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_rows import rules
from kernel_space.operators.smooth_lora_down.smooth_rows.config import SmoothRowsConfig

KERNEL = Kernel(
    name=SmoothRowsConfig.kernel,
    operator=SmoothProblem.operator,
    archs=("sm_90a",),
    source="kernel_space.operators.smooth_lora_down.smooth_rows.kernel",
    config_class=SmoothRowsConfig,
    rules=rules.__name__,
    knob_rules=rules.KNOB_RULES,
)
