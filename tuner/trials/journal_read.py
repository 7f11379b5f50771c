"""Read a journal that belongs to somebody else: nothing is locked, made, cut or written beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, read_plain
from tuner.files.notice import Say, notice
from tuner.trials.journal_lines import IDENTITY, MOST_BYTES, TRIAL, read_line
from tuner.trials.outcome import Trial
from tuner.trials.study import Identity, OtherVersion, damage
from tuner.trials.subject import NotInstalled

NO_JOURNAL = (
    "no journal of trials, which begins with whose trials it holds; a tune writes them below --out/.studies"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Journal:
    """``trials`` in the order of the file, several of one candidate among them, the later ones supplementing the
    earlier. ``damaged``: (number of the line, what is wrong with it). ``unverified``: lines without a checksum.
    """

    path: Path
    identity: Identity
    trials: tuple[Trial, ...]
    damaged: tuple[tuple[int, str], ...]
    unverified: int

    @property
    def latest(self) -> dict[str, Trial]:
        """Resolved config -> its latest trial, in the order of first appearance."""
        return {trial.resolved: trial for trial in self.trials}


def read_journal(path: AnyPath, *, say: Say = notice, follow: bool = False) -> Journal:
    """The journal at ``path``. Damaged lines are left out, and ``say`` is told which; a last line that a kill tore is
    left out too.

    ``follow``: the user named it. Raises ``InputError`` for what is no journal, cannot be read or is about several
    problems, ``NotInstalled`` for one of an operator that is not here.
    """
    path = Path(path)
    whole, _, _ = _bytes(path, follow).rpartition(b"\n")
    trials, identities, bad, strange, unverified = [], [], [], [], 0
    for number, text in enumerate(whole.split(b"\n"), start=1):
        try:
            line = read_line(text)
            if line.word == IDENTITY:
                identities.append(Identity.from_header(line.held))
            elif line.word == TRIAL:
                trials.append((number, line.held))
            unverified += not line.verified
        except InputError as error:
            bad.append((number, str(error)))
            strange += [error] if isinstance(error, NotInstalled | OtherVersion) else []
    if not identities and strange:
        raise type(strange[0])(f"{path}: {strange[0]}")
    if not identities:
        first = f"line 1 is {bad[0][1]}; " if bad and bad[0][0] == 1 else ""
        raise InputError(f"{path}: {first}it is {NO_JOURNAL}")
    if any(one != identities[0] for one in identities):
        raise InputError(f"{path} is about several problems or devices: {NO_JOURNAL}")
    bad += [(number, "a trial of something else") for number, one in trials if not identities[0].holds(one)]
    if bad:
        say(damage(path, sorted(bad)))
    return Journal(
        path=path,
        identity=identities[0],
        trials=tuple(one for _, one in trials if identities[0].holds(one)),
        damaged=tuple(sorted(bad)),
        unverified=unverified,
    )


def _bytes(path: Path, follow: bool) -> bytes:
    try:
        return read_plain(path, limit=MOST_BYTES, follow=follow)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
