"""What a worker is told of a candidate: enough to load its object and launch it, nothing that needs a compiler."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from kernel_space.core.arguments import Argument
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel, kernel_of, operator, operator_of

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel


class Bundled(Protocol):
    """What is asked of an object of a bundle (``tables.bundle.ObjectFile``)."""

    @property
    def path(self) -> Path: ...
    @property
    def prefix(self) -> str: ...
    @property
    def arguments(self) -> tuple[Argument, ...]: ...
    @property
    def sha256(self) -> str: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loadable:
    """One object and how to call it. ``record`` is JSON; ``from_record`` gives the same back.

    ``object_path``    of the object, on the machine of the worker; ``object_sha256`` of its bytes
    ``prefix``         of the object's symbols; ``arguments`` of its host function
    ``config``         resolved, printed: the oracle's tolerance may depend on it
    ``cluster_size``, ``ctas_per_sm``  bound the persistent grid
    """

    object_path: str
    object_sha256: str
    prefix: str
    arguments: tuple[Argument, ...]
    config: str
    cluster_size: int = 1
    ctas_per_sm: int = 1

    @classmethod
    def of(cls, compiled: CompiledKernel, config: KernelConfig) -> Self:
        """Of a built candidate; ``config`` is its resolved config."""
        return cls._of(compiled.object_path, compiled.object_sha256, compiled, config)

    @classmethod
    def of_bundled(cls, file: Bundled, config: KernelConfig) -> Self:
        """Of an object of a bundle; its bytes are compared with its SHA-256 where it is loaded."""
        return cls._of(file.path, file.sha256, file, config)

    @classmethod
    def _of(cls, path: Path, sha256: str, made: CompiledKernel | Bundled, config: KernelConfig) -> Self:
        return cls(
            object_path=str(path.absolute()),
            object_sha256=sha256,
            prefix=made.prefix,
            arguments=made.arguments,
            config=str(config),
            cluster_size=config.cluster_size,
            ctas_per_sm=config.ctas_per_sm,
        )

    def config_for(self, problem: Problem) -> KernelConfig:
        """The config itself, of a kernel of the problem's operator. Raises ``InputError`` for text that is none."""
        first, _, _ = self.config.partition(" ")
        if not first.startswith("kernel="):
            raise InputError(f"a candidate's config must begin with kernel=NAME, got {self.config!r:.80}")
        name = first.removeprefix("kernel=")
        return kernel(problem.operator, name).config_class.parse(self.config)

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
    """A problem to launch a candidate on, and the workspace of a launch: its bytes, and how many of the first are 0."""

    problem: Problem
    workspace_bytes: int = 0
    zeroed_bytes: int = 0

    @classmethod
    def of(cls, config: KernelConfig, problem: Problem) -> Self:
        """Raises ``InputError`` for a kernel that needs a workspace where the operator's signature has none."""
        found = kernel_of(config, problem)
        room = found.room(config, problem)
        if room.size and operator_of(problem).signature.workspace is None:
            raise InputError(
                f"the signature of {problem.operator} must have a Workspace: {found.full_name} needs {room.size} bytes"
            )
        return cls(problem=problem, workspace_bytes=room.size, zeroed_bytes=room.zeroed)

    def record(self) -> dict[str, Any]:
        return {
            "op": self.problem.operator,
            "problem": self.problem.record(),
            "workspace_bytes": self.workspace_bytes,
            "zeroed_bytes": self.zeroed_bytes,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` for a record of another form, and for an operator that is not found here."""
        try:
            rest = {name: value for name, value in record.items() if name not in ("op", "problem")}
            problem = operator(record["op"]).problem.from_record(record["problem"])
            return cls(problem=problem, **rest)
        except (KeyError, TypeError) as error:
            raise InputError(f"not the record of a case: {error}") from None
