"""``quantize_model``: the linears of any model become ``SVDQuantLinear``."""

from __future__ import annotations

import dataclasses
import fnmatch
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath
from kernel_space.numerics.tensors import FLOAT_DTYPES
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tuner.files.store import make_folder
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.calibration import Calibration, Seen, digest_of, repeatable, watch
from tuner.layers.models.one import How, Quantized, quantized
from tuner.layers.models.resume import Finished
from tuner.layers.models.tree import as_linear, bare, linears, matrices, put

SEARCH = "search"
Skip = Iterable[str] | Callable[[str, torch.nn.Linear], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeReport:
    """``layers``: what was replaced, in the model's order. ``left``: linears that stay, and why, by name."""

    layers: tuple[Quantized, ...]
    left: dict[str, str]

    def __str__(self) -> str:
        """A line per layer, the largest error of y first."""
        worst = sorted(self.layers, key=lambda one: -(one.output_error or one.relative_error))
        lines = [f"{len(self.layers)} linears quantized, {len(self.left)} left"]
        return "\n".join(
            [*lines, *map(str, worst), *(f"left {name}: {why}" for name, why in self.left.items())]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Target:
    """One linear and every place where it is. ``linear`` is ``module``, or has its memory."""

    module: torch.nn.Module
    linear: torch.nn.Linear
    names: list[str]


def quantize_model(
    model: torch.nn.Module,
    calibration: Calibration | None = None,
    rank: int = 128,
    skip: Skip = (),
    *,
    smoothing_strength: float | str = 0.5,
    dtype: torch.dtype | None = None,
    svd: str = "auto",
    rows: int = 512,
    memory: int = 1 << 30,
    resume: AnyPath | None = None,
    progress: bool = True,
) -> QuantizeReport:
    """Replace the ``torch.nn.Linear`` of ``model`` by ``SVDQuantLinear``, in place; deterministic.

    ``calibration``: batches, each a tensor, a tuple of arguments or a dict of keyword arguments of the model; or a
    function that is given the model and runs it. Without it x is not smoothed. ``rank``: of the low-rank branch.
    ``skip``: patterns of names (``*.norm*.linear``) or a function of name and linear: these stay.

    ``smoothing_strength``: SmoothQuant's alpha, or ``"search"``: for each layer that of the smallest error of y on
    ``rows`` rows that it saw. ``memory``: bytes of rows that are kept at once; the model runs once for each such share
    of its layers, those before it already replaced. ``resume``: a folder where every finished layer is kept: the same
    call goes on from there. ``dtype``, ``svd``: see ``SVDQuantLinear.from_linear``. ``progress``: a bar on stderr.

    What cannot be quantized (sizes, values) stays and is in the report with its reason. Raises ``InputError`` for
    arguments that do not fit, and what the model raises.
    """
    model = bare(model)
    how = _how(smoothing_strength, rank, dtype, svd, rows)
    batches = repeatable(calibration)
    targets, left = _targets(model, skip, rank)
    finished = None
    if resume is not None:
        finished = Finished(make_folder(Path(resume), option="resume"), how, digest_of(batches), memory)
    done: list[Quantized] = []
    with _bar(len(targets), shown=progress) as bar:
        for share in _shares(targets, rows, memory):
            seen = _seen(model, share, batches, finished, how)
            while share:  # nothing here holds on to a linear that was replaced
                target = share.pop(0)
                kept = None if finished is None else finished.get(target.names[0], target.linear)
                try:
                    layer, result = kept or _one(target, seen.pop(target.module, None), batches, how)
                except InputError as error:
                    left |= dict.fromkeys(target.names, str(error))
                else:
                    if finished is not None and kept is None:
                        finished.keep(target.names[0], target.linear, layer, result)
                    for place in target.names:
                        put(model, place, layer)
                    done.append(result)
                bar.set_postfix_str(target.names[0], refresh=False)
                bar.update()
    return QuantizeReport(layers=tuple(done), left=left)


def _bar(total: int, *, shown: bool) -> tqdm:
    """Of layers, on stderr. A file gets a line in ten seconds: nothing there overwrites one."""
    every = 0.1 if sys.stderr.isatty() else 10.0
    return tqdm(total=total, unit="layer", mininterval=every, disable=not (shown and total))


def _how(strength: float | str, rank: int, dtype: torch.dtype | None, svd: str, rows: int) -> How:
    if strength != SEARCH and (isinstance(strength, str) or not 0.0 <= strength <= 1.0):
        raise InputError(f"smoothing strength must be between 0 and 1 or {SEARCH!r}, got {strength!r}")
    if dtype not in (None, *TORCH_DTYPES.values()):
        raise InputError(f"dtype must be float16 or bfloat16, got {str(dtype).removeprefix('torch.')}")
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    LinearProblem(m=1, k=32, n=8, r=rank)  # raises for a rank outside of the contract
    fixed = None if isinstance(strength, str) else float(strength)
    return How(rank=rank, strength=fixed, dtype=dtype, svd=svd, rows=rows)


def _targets(model: torch.nn.Module, skip: Skip, rank: int) -> tuple[list[_Target], dict[str, str]]:
    """(what is replaced, what stays and why). Raises ``InputError`` for a pattern that no linear has."""
    found = linears(model)
    left = {
        name: f"it is {type(module).__name__}, not torch.nn.Linear itself"
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, torch.nn.Linear) and name not in found
    }
    skipped = _skipped(found, skip)
    by_module: dict[torch.nn.Module, _Target] = {}
    for name, module in found.items():
        linear = as_linear(module)
        if name in skipped:
            left[name] = "skipped"
        elif why := _unfit(name, linear, rank):
            left[name] = why
        else:
            by_module.setdefault(module, _Target(module, linear, [])).names.append(name)
    return list(by_module.values()), left | matrices(model)


def _skipped(found: dict[str, torch.nn.Module], skip: Skip) -> set[str]:
    if callable(skip):
        return {name for name, module in found.items() if skip(name, as_linear(module))}
    skipped: set[str] = set()
    for pattern in [skip] if isinstance(skip, str) else skip:
        hits = fnmatch.filter(found, pattern)
        if not hits:
            raise InputError(f"skip names {pattern!r}, and no linear of the model has such a name")
        skipped.update(hits)
    return skipped


def _unfit(name: str, linear: torch.nn.Linear, rank: int) -> str:
    """Why a linear cannot be a layer, or nothing."""
    if not name:
        return "the model is itself a linear"
    if linear.weight.is_meta:
        return "its weight has no memory (meta device)"
    if linear.weight.dtype not in FLOAT_DTYPES:
        return f"its weight is {str(linear.weight.dtype).removeprefix('torch.')}"
    try:
        LinearProblem(m=1, k=linear.in_features, n=linear.out_features, r=rank)
    except InputError as error:
        return str(error)
    return ""


def _shares(targets: list[_Target], rows: int, memory: int) -> Iterator[list[_Target]]:
    """In order, each with as many as keep at most ``memory`` bytes of rows, at least one; ``targets`` gets empty."""
    share: list[_Target] = []
    size = 0
    while targets:
        target = targets.pop(0)
        needed = rows * target.linear.in_features * target.linear.weight.element_size()
        if share and size + needed > memory:
            yield share
            share, size = [], 0
        share.append(target)
        size += needed
        del target
    if share:
        yield share


def _seen(
    model: torch.nn.Module,
    share: Sequence[_Target],
    batches: Calibration | None,
    finished: Finished | None,
    how: How,
) -> dict[torch.nn.Module, Seen]:
    """Of the layers that are still to be quantized."""
    waiting = [one.module for one in share if finished is None or not finished.has(one.names[0], one.linear)]
    if batches is None or not waiting:
        return {}
    return watch(model, waiting, batches, how.rows)


def _one(
    target: _Target, seen: Seen | None, batches: Calibration | None, how: How
) -> tuple[SVDQuantLinear, Quantized]:
    start = time.monotonic()
    layer, result = quantized(target.linear, seen, how)
    note = "not run in the calibration, not smoothed" if batches is not None and seen is None else ""
    names = tuple(target.names)
    seconds = time.monotonic() - start
    return layer, dataclasses.replace(result, name=names[0], places=names, note=note, seconds=seconds)
