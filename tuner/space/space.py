"""The points a search may try: choices per knob from ``search_spaces/<kernel>.yaml``, and the default rule."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from kernel_space.core.arch import Arch
from kernel_space.core.config import AUTO, KernelConfig, print_knob
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.registry import folder_of, kernels_of
from kernel_space.core.registry import kernel as find_kernel
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.files.plain_yaml import load_yaml
from tuner.space import count as space_count
from tuner.space.count import Count, Legalize

SPACES = Path(__file__).resolve().parents[2] / "search_spaces"
CONDITIONS = tuple(f"{size}_{bound}" for size in "mnkr" for bound in ("at_least", "at_most"))


@dataclasses.dataclass(frozen=True)
class Knob:
    """Choices of one knob in their printed form, the first the plainest, and why these."""

    choices: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True)
class BoundedConfig:
    """A config for problems within bounds; ``when`` maps ``m_at_most`` and the like to a size. Empty: always."""

    when: Mapping[str, int]
    config: KernelConfig
    reason: str

    def holds(self, problem: GemmProblem) -> bool:
        return all(_holds(condition, bound, problem) for condition, bound in self.when.items())


@dataclasses.dataclass(frozen=True)
class SearchSpace:
    """All combinations of the knobs' choices; which of them are legal only ``rules.py`` knows.

    ``defaults``: the default rule, the first that holds. ``designs``: points that a search of a problem within their
    bounds tries early, because each stands for a part of the space that changes of one knob do not reach.
    """

    operator: str
    kernel: str
    knobs: Mapping[str, Knob]
    defaults: tuple[BoundedConfig, ...]
    designs: tuple[BoundedConfig, ...] = ()

    @classmethod
    def load(cls, operator_name: str, arch: Arch) -> Self:
        """The space of an operator's kernel for ``arch``. Raises ``InputError`` when there is none."""
        with_space = [kernel for kernel in kernels_of(operator_name, arch) if space_path(kernel).is_file()]
        if not with_space:
            raise InputError(f"there is no search space for {operator_name} on {arch.name}")
        return cls.read(space_path(with_space[0]), operator_name)

    @classmethod
    def read(cls, path: Path, operator_name: str) -> Self:
        """The space in a YAML file. Raises ``InputError`` that names the knob or rule that is wrong."""
        document = load_yaml(path)
        try:
            kernel = document["kernel"]
            config_class = find_kernel(operator_name, kernel).config_class
            knobs = {name: _knob(name, entry, config_class) for name, entry in document["knobs"].items()}
            defaults = tuple(_bounded_config(entry, config_class) for entry in document["default"])
            designs = tuple(_bounded_config(entry, config_class) for entry in document.get("designs") or ())
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path.name} must hold kernel, knobs and default: {error!r}") from None
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from None
        names = config_class.knob_names()
        if tuple(knobs) != names:
            different = sorted(set(knobs) ^ set(names)) or "their order"
            raise InputError(
                f"{path.name}: knobs must be the fields of {config_class.__name__}, differs in {different}"
            )
        if not defaults or defaults[-1].when:
            raise InputError(f"{path.name}: the last default rule must hold for every problem")
        space = cls(operator=operator_name, kernel=kernel, knobs=knobs, defaults=defaults, designs=designs)
        for design in designs:
            if outside := space._outside(design.config):
                raise InputError(
                    f"{path.name}: a design must be made of the knobs' choices, {outside[0]} is not one in "
                    f"{design.config}"
                )
        return space

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

    def restrict(self, choices: Mapping[str, tuple[str, ...]]) -> Self:
        """The same space with fewer choices for some knobs."""
        knobs = {
            name: dataclasses.replace(knob, choices=choices.get(name, knob.choices))
            for name, knob in self.knobs.items()
        }
        return dataclasses.replace(self, knobs=knobs)

    def default(self, problem: GemmProblem) -> KernelConfig:
        """The config of the first default rule that holds: legal for every legal problem (a test says so)."""
        return next(rule.config for rule in self.defaults if rule.holds(problem))

    def starts(self, problem: GemmProblem) -> list[KernelConfig]:
        """What a search tries before it samples, legal or not: the designs for ``problem``, then the default rule's
        configs for all problems, each of which may be another design.
        """
        found = [design.config for design in self.designs if design.holds(problem)]
        return [*found, *(rule.config for rule in self.defaults)]

    def config(self, params: Mapping[str, str]) -> KernelConfig:
        """Knob -> printed choice, as a sampler proposes it."""
        return self.config_class.from_fields(dict(params))

    def random_config(self, generator: random.Random) -> KernelConfig:
        """A point drawn evenly from all, legal or not."""
        return self.config({name: generator.choice(knob.choices) for name, knob in self.knobs.items()})

    def spell(
        self, config: KernelConfig, problem: GemmProblem, arch: Arch, legalize: Legalize = legalize
    ) -> dict[str, str] | None:
        """``config`` as choices of this space, None if it is no point of it.

        A stage count that is no choice becomes ``auto`` where that resolves to the same kernel.
        """
        fields = config.fields()
        outside = self._outside(config)
        if not outside:
            return fields
        if not all(AUTO in self.knobs[name].choices for name in outside):
            return None
        spelled = config.replace(**dict.fromkeys(outside, AUTO))
        before, after = (legalize(one, problem, arch) for one in (config, spelled))
        same = isinstance(before, Legal) and isinstance(after, Legal) and before.config == after.config
        return spelled.fields() if same else None

    def _outside(self, config: KernelConfig) -> list[str]:
        """Knobs whose value is no choice."""
        return [name for name, text in config.fields().items() if text not in self.knobs[name].choices]

    def legal_points(
        self, problem: GemmProblem, arch: Arch, legalize: Legalize = legalize
    ) -> Iterator[Legal]:
        """Every distinct legal kernel once, in a fixed order; taking a few does not cost the rest."""
        return space_count.legal_points(self.values, problem, arch, legalize, self.config_class)

    def legal_up_to(self, limit: int, problem: GemmProblem, arch: Arch, legalize: Legalize = legalize) -> int:
        """The number of distinct legal kernels, or ``limit`` if there are at least as many."""
        return sum(1 for _ in itertools.islice(self.legal_points(problem, arch, legalize), limit))

    def count(self, problem: GemmProblem, arch: Arch) -> Count:
        """Exact numbers of legal and, by rule, illegal points; seconds for the whole space."""
        return space_count.count(
            self.values, problem, arch, legalize, find_kernel(self.operator, self.kernel)
        )


def has_space(operator_name: str, arch: Arch) -> bool:
    """Whether a search can drive a kernel of the operator for ``arch``: it has a YAML."""
    return any(space_path(kernel).is_file() for kernel in kernels_of(operator_name, arch))


def space_path(kernel: Kernel) -> Path:
    """The YAML of ``kernel``: in its operator's folder, or below ``search_spaces``."""
    own = folder_of(kernel.operator) / f"{kernel.name}.yaml"
    return own if own.is_file() else SPACES / kernel.operator / f"{kernel.name}.yaml"


def _knob(name: str, entry: Mapping[str, Any], config_class: type[KernelConfig]) -> Knob:
    if name not in config_class.knob_names():
        raise InputError(f"unknown knob {name!r}; the knobs are {' '.join(config_class.knob_names())}")
    choices = tuple(print_knob(config_class.parse_knob(name, choice)) for choice in entry["choices"])
    if not choices or len(set(choices)) < len(choices):
        raise InputError(f"{name} needs choices, each once, got {' '.join(choices) or 'none'}")
    if not str(entry["reason"]).strip():
        raise InputError(f"{name} needs a reason for its choices")
    return Knob(choices=choices, reason=" ".join(entry["reason"].split()))


def _bounded_config(entry: Mapping[str, Any], config_class: type[KernelConfig]) -> BoundedConfig:
    when = dict(entry.get("when") or {})
    for condition, bound in when.items():
        if condition not in CONDITIONS or not isinstance(bound, int):
            raise InputError(
                f"a config is bounded by {' '.join(CONDITIONS)} and a whole number, got {condition}: {bound}"
            )
    return BoundedConfig(when, config_class.parse(entry["config"]), " ".join(entry["reason"].split()))


def _holds(condition: str, bound: int, problem: GemmProblem) -> bool:
    size = getattr(problem, condition[0])
    return size >= bound if condition.endswith("at_least") else size <= bound
