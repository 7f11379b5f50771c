"""What a worker is told of a candidate: enough to load its object and launch it, nothing that needs a compiler."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.config import KernelConfig
    from tuner.tables.bundle import ObjectFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loadable:
    """One object and how to call it. ``record`` is JSON; ``from_record`` gives the same back.

    ``object_path``    of the object, on the machine of the worker; ``object_sha256`` of its bytes
    ``prefix``         of the object's symbols; ``arguments`` of its host function
    ``config``         resolved, for messages
    ``cluster_size``, ``ctas_per_sm``  bound the persistent grid
    ``split_k``        enters the tolerance
    """

    object_path: str
    object_sha256: str
    prefix: str
    arguments: tuple[Argument, ...]
    config: str
    cluster_size: int = 1
    ctas_per_sm: int = 1
    split_k: int = 1

    @classmethod
    def of(cls, compiled: CompiledKernel, config: KernelConfig) -> Self:
        """Of a built candidate; ``config`` is its resolved config."""
        return cls._of(compiled.object_path, compiled.object_sha256, compiled, config)

    @classmethod
    def of_bundled(cls, file: ObjectFile, config: KernelConfig) -> Self:
        """Of an object of a bundle; its bytes are compared with its SHA-256 where it is loaded."""
        return cls._of(file.path, file.sha256, file, config)

    @classmethod
    def _of(cls, path: Path, sha256: str, made: CompiledKernel | ObjectFile, config: KernelConfig) -> Self:
        return cls(
            object_path=str(path.absolute()),
            object_sha256=sha256,
            prefix=made.prefix,
            arguments=made.arguments,
            config=str(config),
            cluster_size=config.cluster_size,
            ctas_per_sm=getattr(config, "ctas_per_sm", 1),  # kernels without the knob have one CTA per SM
            split_k=config.partial_sums,
        )

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` for a record of another form."""
        try:
            arguments = tuple(Argument(**argument) for argument in record["arguments"])
            return cls(**{**record, "arguments": arguments})
        except (KeyError, TypeError) as error:
            raise InputError(f"not the record of a candidate: {error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A problem to launch a candidate on. Bytes are those of ``workspace.workspace_bytes`` and ``zeroed_bytes``."""

    problem: GemmProblem
    workspace_bytes: int = 0
    zeroed_bytes: int = 0

    @classmethod
    def of(cls, config: KernelConfig, problem: GemmProblem) -> Self:
        return cls(
            problem=problem,
            workspace_bytes=workspace_bytes(config, problem),
            zeroed_bytes=zeroed_bytes(config, problem),
        )

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` for a record of another form."""
        try:
            return cls(**{**record, "problem": GemmProblem(**record["problem"])})
        except (KeyError, TypeError) as error:
            raise InputError(f"not the record of a case: {error}") from None
