"""Search spaces as files: a YAML per kernel, and where an operator has several one with the default rule across them.

They lie in the operator's own folder, or below ``search_spaces/<operator>/``.

``<kernel>.yaml``   ``kernel``, ``knobs`` (``choices`` and ``reason`` of each), ``designs``; ``default`` where the
                    operator has no other kernel for the architecture
``<arch>.yaml``     ``default``: full candidates ``kernel=NAME knob=value …`` in order, the first that holds is taken
``default.yaml``    the same for every architecture without such a file; kernels of other architectures are passed over

Entries of ``default`` and ``designs`` have a ``config``, a ``reason`` and may have bounds, ``when`` (``bounded.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig, print_knob
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.operator import Chained
from kernel_space.core.problem import Problem
from kernel_space.core.registry import folder_of, kernels_of, operator, parse_config
from kernel_space.core.registry import kernel as find_kernel
from kernel_space.places import shipped
from tuner.files.plain_yaml import load_yaml
from tuner.space.bounded import BoundedConfig, bounds
from tuner.space.composite import Rules, composite_rule, composite_spaces
from tuner.space.kernel import KernelSpace, Knob

SPACES = shipped("search_spaces")
KEYS = ("kernel", "knobs", "designs", "default")


def has_space(operator_name: str, arch: Arch) -> bool:
    """Whether a search can drive a kernel of the operator for ``arch``: it has a YAML; of a chain, every link has."""
    if (composed := operator(operator_name).composed) is not None:
        return all(has_space(link.operator, arch) for link in composed.links)
    return bool(_with_space(operator_name, arch))


def space_file(operator_name: str, name: str) -> Path:
    """A file of an operator's space, there or not."""
    own = folder_of(operator_name) / name
    return own if own.is_file() else SPACES / operator_name / name


def read_kernel_spaces(operator_name: str, arch: Arch) -> dict[str, KernelSpace]:
    """Kernel -> its space, of those that have one, in the operator's order. Raises ``InputError`` as below."""
    if (composed := operator(operator_name).composed) is not None:
        spaces, rules = _of_links(composed, arch)
        return _own_spaces(operator_name, arch) | composite_spaces(composed, spaces, rules)
    return _own_spaces(operator_name, arch)


def _own_spaces(operator_name: str, arch: Arch) -> dict[str, KernelSpace]:
    """Of the kernels that have a YAML: of a chain those that are no chains themselves."""
    return {
        kernel.name: read_kernel_space(_path(kernel), operator_name)
        for kernel in _with_space(operator_name, arch)
    }


def read_kernel_space(path: Path, operator_name: str) -> KernelSpace:
    """The space in a YAML file. Raises ``InputError`` that names the knob or rule that is wrong."""
    return _read(path, lambda document: _kernel_space(document, operator_name))


def no_space(operator_name: str, arch: Arch) -> InputError:
    """That no kernel of the operator can be searched on ``arch``, and why."""
    found = operator(operator_name)
    elsewhere = sorted(
        {name for kernel in found.kernels for name in find_kernel(operator_name, kernel).archs}
    )
    if arch.name not in elsewhere:
        return InputError(
            f"{operator_name} has kernels for {', '.join(elsewhere)}, none for {arch.name}; choose another --device"
        )
    return InputError(
        f"there is no search space for {operator_name} on {arch.name}; a kernel for it needs "
        f"search_spaces/{operator_name}/KERNEL.yaml, or KERNEL.yaml in the operator's folder"
    )


def read_default_rule(
    operator_name: str, arch: Arch, kernels: Mapping[str, KernelSpace]
) -> tuple[BoundedConfig, ...]:
    """The ordered default rule across ``kernels``, whose last entry holds for every problem. Raises ``InputError``."""
    if (composed := operator(operator_name).composed) is not None:
        return composite_rule(composed, _of_links(composed, arch)[1])
    paths = [space_file(operator_name, f"{name}.yaml") for name in (arch.name, "default")]
    path = next((path for path in paths if path.is_file()), None)
    own = [name for name, space in kernels.items() if space.defaults]
    if path is None and len(kernels) > 1:
        raise InputError(
            f"{operator_name} has the kernels {', '.join(kernels)} for {arch.name}, so {arch.name}.yaml must hold the "
            f"default rule across them, in {paths[0].parent}"
        )
    if not kernels:
        raise no_space(operator_name, arch)
    if path is None and not own:
        raise InputError(f"{next(iter(kernels))}.yaml must hold the default rule of {operator_name}, default")
    if path is None:
        return kernels[own[0]].defaults
    if own:
        raise InputError(f"the default rule is in {path.name}, so {own[0]}.yaml must not hold one, too")
    return _read(path, lambda document: _default_rule(document, operator_name, arch, path == paths[1]))


def _of_links(composed: Chained, arch: Arch) -> tuple[list[dict[str, KernelSpace]], Rules]:
    """The spaces and the default rule of every link."""
    spaces = [read_kernel_spaces(link.operator, arch) for link in composed.links]
    rules = {
        link.name: read_default_rule(link.operator, arch, own)
        for link, own in zip(composed.links, spaces, strict=True)
    }
    return spaces, rules


def _read(path: Path, take: Callable[[Any], Any]) -> Any:
    """``take`` of the document, with the file's name before what is wrong."""
    document = load_yaml(path)
    try:
        return take(document)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"{path.name} is no file of a search space as docs/search.md says: {error!r}"
        ) from None
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _kernel_space(document: Any, operator_name: str) -> KernelSpace:
    if not isinstance(document, dict) or not {"kernel", "knobs"} <= {*document} <= {*KEYS}:
        got = " ".join(map(str, document)) if isinstance(document, dict) else type(document).__name__
        raise InputError(f"it must hold kernel and knobs, and may hold designs and default; got {got:.80}")
    problem = operator(operator_name).problem
    config_class = find_kernel(operator_name, document["kernel"]).config_class

    def entries(name: str) -> tuple[BoundedConfig, ...]:
        return tuple(_entry(one, problem, config_class.parse) for one in document.get(name) or ())

    space = KernelSpace(
        operator=operator_name,
        kernel=document["kernel"],
        knobs={name: _knob(name, entry, config_class) for name, entry in document["knobs"].items()},
        designs=entries("designs"),
        defaults=_whole_rule(entries("default")) if "default" in document else (),
    )
    _check_knobs(space)
    return space


def _check_knobs(space: KernelSpace) -> None:
    """The knobs must be the config's, in its order, and designs be made of their choices."""
    names = space.config_class.knob_names()
    if tuple(space.knobs) != names:
        different = sorted(set(space.knobs) ^ set(names)) or "their order"
        raise InputError(f"knobs must be the fields of {space.config_class.__name__}, differs in {different}")
    for design in space.designs:
        if outside := space.outside(design.config):
            raise InputError(
                f"a design must be made of the knobs' choices, {outside[0]} is not one in {design.config}"
            )


def _default_rule(
    document: Any, operator_name: str, arch: Arch, of_every_arch: bool
) -> tuple[BoundedConfig, ...]:
    if not isinstance(document, dict) or set(document) != {"default"}:
        raise InputError("it must hold default alone: the default rule across the kernels")
    entries = document["default"] or ()
    if of_every_arch:
        here = {kernel.name for kernel in kernels_of(operator_name, arch)}
        elsewhere = {*operator(operator_name).kernels} - here
        entries = [one for one in entries if _kernel_in(one["config"]) not in elsewhere]
    problem = operator(operator_name).problem
    return _whole_rule(
        tuple(_entry(one, problem, lambda text: parse_config(operator_name, arch, text)) for one in entries)
    )


def _kernel_in(text: str) -> str:
    return text.split()[0].removeprefix("kernel=")


def _whole_rule(entries: tuple[BoundedConfig, ...]) -> tuple[BoundedConfig, ...]:
    if not entries or entries[-1].when:
        raise InputError("the last default rule must hold for every problem")
    return entries


def _with_space(operator_name: str, arch: Arch) -> list[Kernel]:
    return [kernel for kernel in kernels_of(operator_name, arch) if _path(kernel).is_file()]


def _path(kernel: Kernel) -> Path:
    return space_file(kernel.operator, f"{kernel.name}.yaml")


def _knob(name: str, entry: Mapping[str, Any], config_class: type[KernelConfig]) -> Knob:
    if name not in config_class.knob_names():
        raise InputError(f"unknown knob {name!r}; the knobs are {' '.join(config_class.knob_names())}")
    choices = tuple(print_knob(config_class.parse_knob(name, choice)) for choice in entry["choices"])
    if not choices or len(set(choices)) < len(choices):
        raise InputError(f"{name} needs choices, each once, got {' '.join(choices) or 'none'}")
    return Knob(choices=choices, reason=_reason(entry, name))


def _entry(
    entry: Mapping[str, Any], problem: type[Problem], parse: Callable[[str], KernelConfig]
) -> BoundedConfig:
    when = bounds(entry.get("when"), problem)
    return BoundedConfig(when, parse(entry["config"]), _reason(entry, entry["config"]))


def _reason(entry: Mapping[str, Any], what: str) -> str:
    if not (reason := " ".join(str(entry["reason"] or "").split())):
        raise InputError(f"{what} needs a reason")
    return reason
