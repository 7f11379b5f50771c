"""Two kernels in one: ``stamp``, and ``other`` beside it with the same sources under another name."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, number, stages
from kernel_space.core.kernel import Kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class StampConfig(KernelConfig, kernel="stamp"):
    """``value``: added to the constant. ``behaviour``: of the compiler, see ``kernel.py``."""

    value: int = number(0)
    behaviour: int = number(1)
    num_stage: int | str = stages()


KERNEL = Kernel(
    name="stamp",
    operator="stamp",
    archs=("sm_90a", "sm_100a", "sm_103a"),
    source=f"{__package__}.kernel",
    config_class=StampConfig,
    knob_rules={},
    solve_stages=lambda config, problem_class, arch: config.replace(num_stage=1),
)
