"""``compile``: build one config (or fetch it from the cache); resources and paths of everything it consists of."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kernel_space.build.build import CompiledKernel, CompileError, build
from kernel_space.build.resources import ToolError, disassemble
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from tuner.cli.look.chosen import chosen_configs, legal_config
from tuner.cli.options import text
from tuner.cli.options.common import problems_of
from tuner.cli.options.exits import CommandError
from tuner.devices.device import Device
from tuner.devices.select import select_device
from tuner.files.store import StoreError, atomic_write

SASS = "kernel.sass"
TENSOR_PREFIXES = ("UTC", "HGMMA", "HMMA")  # tcgen05, wgmma, mma.sync


def compile_command(args: argparse.Namespace) -> int:
    problems, device = problems_of(args), select_device(args.device, results=args.out)
    chosen = chosen_configs(args, problems, device)
    legals = [(problem, legal_config(problem, chosen[problem], device)) for problem in problems]
    built = [(problem, legal, _build(problem, legal, device)) for problem, legal in legals]
    if args.json:
        results = [{**_record(*one), "config_from": chosen[one[0]].source} for one in built]
        text.print_json({"device": text.device_record(device), "results": results})
        return 0
    for number, one in enumerate(built):
        print("\n" * min(number, 1), end="")
        _print(*one, chosen[one[0]].source)
    return 0


def _build(problem: Problem, legal: Legal, device: Device) -> CompiledKernel:
    try:
        compiled = build(legal.config, problem.problem_class, device.arch)
        _write_sass(compiled)
    except (CompileError, ToolError) as error:
        raise CommandError(f"{legal.config} does not compile for {device.arch.name}: {error}") from None
    except StoreError as error:  # in the cache, as what ``build`` may raise
        raise InputError(str(error)) from None
    return compiled


def _write_sass(compiled: CompiledKernel) -> None:
    """Beside the cubin it was read from; the cache removes both together."""
    if not _sass_path(compiled).is_file():
        atomic_write(_sass_path(compiled), disassemble(compiled.cubin_path))


def _sass_path(compiled: CompiledKernel) -> Path:
    return compiled.directory / SASS


def _record(problem: Problem, legal: Legal, compiled: CompiledKernel) -> dict[str, Any]:
    resources = compiled.resources
    return {
        **text.problem_record(problem),
        "config": compiled.config,
        "problem_class": compiled.problem_class,
        "registers": resources.registers,
        "spill_bytes": resources.spill_bytes,
        "stack_bytes": resources.stack_bytes,
        "static_smem_bytes": resources.static_smem_bytes,
        "dynamic_smem_bytes": legal.budget.smem_bytes,
        "tmem_columns": legal.budget.tmem_columns_allocated,
        "sass_counts": compiled.sass_counts(),
        "ptx": str(compiled.ptx_path),
        "cubin": str(compiled.cubin_path),
        "sass": str(_sass_path(compiled)),
        "object": str(compiled.object_path),
        "prefix": compiled.prefix,
        "dsl_version": compiled.dsl_version,
        "variant": compiled.variant,
        "source_hash": compiled.source_hash,
        "cubin_sha256": compiled.cubin_sha256,
    }


def _print(problem: Problem, legal: Legal, compiled: CompiledKernel, source: str) -> None:
    resources, counts = compiled.resources, compiled.sass_counts()
    tensor = ", ".join(
        f"{name} {count}" for name, count in counts.items() if name.startswith(TENSOR_PREFIXES)
    )
    text.print_block(
        [
            ("problem", f"{text.describe_problem(problem)}, class {compiled.problem_class}"),
            ("config", compiled.config),
            ("from", source),
            ("registers", f"{resources.registers} per thread, {resources.spill_bytes} bytes of spills"),
            ("SMEM", f"{legal.budget.smem_bytes} bytes dynamic, {resources.static_smem_bytes} static"),
            *_tmem_line(legal),
            ("SASS", f"{sum(counts.values())} instructions: {tensor or 'none of the tensor core'}"),
            ("PTX", compiled.ptx_path),
            ("cubin", compiled.cubin_path),
            ("listing", _sass_path(compiled)),
            ("object", f"{compiled.object_path}, prefix {compiled.prefix}"),
            ("compiler", f"nvidia-cutlass-dsl {compiled.dsl_version}, {compiled.variant}"),
        ]
    )


def _tmem_line(legal: Legal) -> list[tuple[str, str]]:
    """Nothing for a kernel without tensor memory."""
    return [("TMEM", f"{legal.budget.tmem_columns_allocated} columns")] if legal.budget.tmem.rows else []
