"""What can end a run of the machine besides success: values for the report, never a crash of the process."""

from __future__ import annotations

from enum import StrEnum


class SimStatus(StrEnum):
    """Verdict of one run."""

    OK = "OK"
    DEADLOCK = "DEADLOCK"
    RACE = "RACE"
    ILLEGAL_ACCESS = "ILLEGAL_ACCESS"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    UNSUPPORTED = "UNSUPPORTED"
    BUDGET_EXCEEDED = "BUDGET_EXCEEDED"


class Unsupported(Exception):
    """The PTX asks for something the machine does not model; names PTX line, opcode and modifier."""

    def __init__(self, what: str, *, line: int = 0, opcode: str = "", modifier: str = "") -> None:
        self.what, self.line, self.opcode, self.modifier = what, line, opcode, modifier
        super().__init__(what)

    def __str__(self) -> str:
        where = f"PTX line {self.line}: " if self.line else ""
        opcode = f"{self.opcode}: " if self.opcode else ""
        modifier = f" (modifier .{self.modifier})" if self.modifier else ""
        return f"{where}{opcode}{self.what}{modifier}"


class Fault(Exception):
    """An error of the executed program. ``status`` is the verdict, ``reason`` one sentence."""

    status = SimStatus.PROTOCOL_ERROR

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class IllegalAccess(Fault):
    """A memory access outside of every allocation the machine knows, or a misaligned one."""

    status = SimStatus.ILLEGAL_ACCESS


class ProtocolError(Fault):
    """A use of a barrier, of TMEM or of a descriptor that the hardware does not define."""

    status = SimStatus.PROTOCOL_ERROR
