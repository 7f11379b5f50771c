"""The config of a chain: the knobs of every link, each with the link's name before its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from kernel_space.core.config import KernelConfig
from kernel_space.core.registry import kernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompositeConfig(KernelConfig):
    """Base of the config classes of chains. ``links``: name -> config class, in the order of launches."""

    operator: ClassVar[str] = ""
    links: ClassVar[Mapping[str, type[KernelConfig]]] = {}

    def of(self, link: str) -> Any:
        """The config of one link."""
        one = self.links[link]
        return one(**{name: getattr(self, f"{link}_{name}") for name in one.knob_names()})

    @classmethod
    def join(cls, configs: Mapping[str, KernelConfig]) -> Self:
        """From a config of every link."""
        return cls(
            **{
                f"{link}_{name}": getattr(configs[link], name)
                for link, one in cls.links.items()
                for name in one.knob_names()
            }
        )

    @property
    def cluster_size(self) -> int:
        """Of the link with the largest clusters: those are what a card holds fewest of."""
        return max(self.of(link).cluster_size for link in self.links)

    @property
    def launches_early(self) -> bool:
        """What comes before the chain is overlapped by its first launch."""
        return bool(self.of(next(iter(self.links))).launches_early)

    def __reduce__(self) -> tuple[Any, ...]:
        """The class is made while the program runs: another process makes its own."""
        return _restored, (self.operator, self.kernel, self.fields())


def _restored(operator: str, name: str, fields: dict[str, str]) -> KernelConfig:
    return kernel(operator, name).config_class.from_fields(fields)


def config_class(operator: str, name: str, links: Mapping[str, type[KernelConfig]]) -> type[CompositeConfig]:
    """Of the kernel ``name`` of a chain. Knobs stand in the order of the links."""
    fields = [
        (f"{link}_{one.name}", Any, dataclasses.field(default=one.default, metadata=dict(one.metadata)))
        for link, part in links.items()
        for one in dataclasses.fields(part)
    ]
    made = dataclasses.make_dataclass(
        "".join(word.capitalize() for word in operator.split("_")) + "Config",
        fields,
        bases=(CompositeConfig,),
        namespace={"kernel": name, "operator": operator, "links": dict(links)},
        frozen=True,
        kw_only=True,
    )
    made.__module__ = __name__
    return made
