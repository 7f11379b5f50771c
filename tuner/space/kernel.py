"""The points of one kernel: choices per knob, and designs to begin with."""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, Self

from kernel_space.core.arch import Arch
from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel as find_kernel
from kernel_space.core.rules import Legal, legalize
from tuner.space import count as space_count
from tuner.space.bounded import BoundedConfig
from tuner.space.count import Count, Legalize


@dataclasses.dataclass(frozen=True)
class Knob:
    """Choices of one knob in their printed form, the first the plainest, and why these."""

    choices: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class KernelSpace:
    """All combinations of a kernel's choices; which of them are legal only its rules know.

    ``designs``: points that a search of a problem within their bounds tries early, because each stands for a part of
    the space that changes of one knob do not reach. ``defaults``: the default rule, where no other kernel is there.
    """

    operator: str
    kernel: str
    knobs: Mapping[str, Knob]
    designs: tuple[BoundedConfig, ...] = ()
    defaults: tuple[BoundedConfig, ...] = ()

    @property
    def config_class(self) -> type[KernelConfig]:
        return find_kernel(self.operator, self.kernel).config_class

    @property
    def raw_size(self) -> int:
        """Points, legal or not."""
        return math.prod(len(knob.choices) for knob in self.knobs.values())

    @property
    def values(self) -> dict[str, list[Any]]:
        """Knob -> choices as values of the config's fields."""
        return {
            name: [self.config_class.parse_knob(name, choice) for choice in knob.choices]
            for name, knob in self.knobs.items()
        }

    @functools.cached_property
    def stages(self) -> frozenset[str]:
        """Knobs that count slots of a ring."""
        return frozenset(self.config_class.stage_names())

    @functools.cached_property
    def solved(self) -> tuple[str, ...]:
        """Those of them that may be left to the stage solver."""
        return tuple(name for name, knob in self.knobs.items() if AUTO in knob.choices)

    @property
    def plainest(self) -> KernelConfig:
        """The first choice of every knob, legal or not."""
        return self.config({name: knob.choices[0] for name, knob in self.knobs.items()})

    def restrict(self, choices: Mapping[str, tuple[str, ...]]) -> Self:
        """The same space with fewer choices for some knobs."""
        knobs = {
            name: dataclasses.replace(knob, choices=choices.get(name, knob.choices))
            for name, knob in self.knobs.items()
        }
        return dataclasses.replace(self, knobs=knobs)

    def config(self, params: Mapping[str, str]) -> KernelConfig:
        """Knob -> printed choice, as a sampler proposes it."""
        return self.config_class.from_fields(dict(params))

    def random_config(self, generator: random.Random) -> KernelConfig:
        """A point drawn evenly from all, legal or not."""
        return self.config({name: generator.choice(knob.choices) for name, knob in self.knobs.items()})

    def spell(
        self, config: KernelConfig, problem: Problem, arch: Arch, legalize: Legalize = legalize
    ) -> dict[str, str] | None:
        """``config`` as choices of this space, None if it is no point of it.

        A stage count that is no choice becomes ``auto`` where that resolves to the same kernel.
        """
        fields = config.fields()
        outside = self.outside(config)
        if not outside:
            return fields
        if not set(outside) <= set(self.solved):
            return None
        spelled = config.replace(**dict.fromkeys(outside, AUTO))
        before, after = (legalize(one, problem, arch) for one in (config, spelled))
        same = isinstance(before, Legal) and isinstance(after, Legal) and before.config == after.config
        return spelled.fields() if same else None

    def outside(self, config: KernelConfig) -> list[str]:
        """Knobs whose value is no choice."""
        return [name for name, text in config.fields().items() if text not in self.knobs[name].choices]

    def legal_points(self, problem: Problem, arch: Arch, legalize: Legalize = legalize) -> Iterator[Legal]:
        """Every distinct legal config once, in a fixed order; taking a few does not cost the rest."""
        return space_count.legal_points(self.values, problem, arch, legalize, self.config_class)

    def count(self, problem: Problem, arch: Arch) -> Count:
        """Exact numbers of legal and, by rule, illegal points; seconds for a large space."""
        return space_count.count(
            self.values, problem, arch, legalize, find_kernel(self.operator, self.kernel)
        )
