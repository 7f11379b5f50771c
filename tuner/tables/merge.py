"""Which of two rows for the same key stands: what makes a row stale, and the merge rule."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from kernel_space.build.key import kernel_source_hash
from kernel_space.check.version import check_version
from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, parse_config
from tuner.tables.row import Provenance, Row
from tuner.trials.checked import Check
from tuner.trials.outcome import Kind
from tuner.trials.relative import BETWEEN_CARDS, BETWEEN_VISITS, Relative, noise_of_ratios

PRECEDENCE = {Kind.MEASURED: 2, Kind.SIMULATED: 1, Kind.MODELLED: 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Current:
    """Today's provenance. ``kernel_source``: of a row, the hash of its kernel's sources as they are, empty when there
    is no such kernel. ``models``: one per kind of time that has one; a kind that is not listed has no model.
    ``oracle``: by the name of an operator, what a model's verdicts on its kernels depend on besides, or empty.
    ``driver``: of the card at hand, empty where there is none.
    """

    kernel_source: Callable[[Row], str]
    dsl_version: str
    models: Mapping[Kind, str] = dataclasses.field(default_factory=dict)
    oracle: Callable[[str], str] = lambda operator: ""
    driver: str = ""

    def model(self, kind: Kind, operator: str) -> str:
        """Of a row of ``operator``: the model with the operator's oracle, or empty for a kind without a model."""
        parts = [self.models[kind], self.oracle(operator)] if self.models.get(kind) else []
        return " oracle ".join(filter(None, parts))

    def provenance(self, row: Row) -> Provenance:
        """What ``row`` would say if it were made now."""
        return Provenance(
            kernel_source=self.kernel_source(row),
            dsl_version=self.dsl_version,
            model=self.model(row.kind, row.key.op),
        )


def own_kernel_source(row: Row) -> str:
    """Hash of the sources of the kernel whose config ``row`` has; empty when this version has none such."""
    try:
        config = parse_config(row.key.op, arch(row.key.arch), row.config)
        return kernel_source_hash(kernel_of(config, row.key.problem))
    except InputError:
        return ""


def own_oracle(operator: str) -> str:
    """Hash of the operator's inputs and oracle as they are; empty when this version has no such operator."""
    try:
        return check_version(operator)
    except InputError:
        return ""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What became of a new row: ``row`` is the one that stands, ``recorded`` whether the table changed."""

    row: Row
    recorded: bool
    reason: str


def stale_reason(row: Row, current: Current | None) -> str:
    """Why ``row`` no longer describes what is built and timed today; empty when it does, or nobody asks."""
    if current is None:
        return ""
    now = current.provenance(row)
    names = ("kernel_source", "dsl_version", "model")
    changed = [name for name in names if getattr(row.provenance, name) != getattr(now, name)]
    return ", ".join(
        f"{name.replace('_', ' ')} {_brief(getattr(row.provenance, name))}, now {_brief(getattr(now, name))}"
        for name in changed
    )


def outdated_reason(row: Row, current: Current | None) -> str:
    """``stale_reason``, and for a measured row the driver, if the card at hand has another one: its times are of then,
    but the merge rule compares drivers by ratios and does not call the row stale."""
    reason = stale_reason(row, current)
    then = str(row.evidence.get("driver") or "")
    if current is None or row.kind is not Kind.MEASURED or not (then and current.driver):
        return reason
    driver = "" if then == current.driver else f"driver {then}, now {current.driver}"
    return ", ".join(filter(None, (reason, driver)))


def _brief(hash_or_version: str) -> str:
    return hash_or_version[:12] or "none"


def choose(old: Row | None, new: Row, current: Current) -> Decision:
    """The merge rule, whole. The first line that applies decides:

    1. no row yet: the new one;
    2. one of them was never checked: the checked one, even if it is stale: only what was checked is launched;
    3. one of them stale: the fresh one;
    4. kinds differ: measured before simulated before modelled;
    5. both stale, of different provenance: their times do not compare; the later date, a tie keeps the old;
    6. one of them was checked as the winner, the other as a candidate only: the former;
    7. the same config: the later date refreshes the evidence, unless nothing but the date differs;
    8. otherwise the new one, if it is faster by more than the noise of the two: by their times where one card and
       driver measured both or nothing was measured (``noise_of_difference``), else by their ratios to the default of
       the same rounds (``noise_of_ratios``). Without such ratios to one default: if it won the final in which the
       other was runner-up, else by times ``BETWEEN_CARDS`` apart.
    """
    if old is None:
        return Decision(new, True, "first row of this key")
    if (old.check is Check.NONE) != (new.check is Check.NONE):
        return _more_checked(old, new)
    old_stale, new_stale = stale_reason(old, current), stale_reason(new, current)
    if bool(old_stale) != bool(new_stale):
        return _decide(
            old,
            new,
            bool(old_stale),
            f"{'old' if old_stale else 'new'} row is stale: {old_stale or new_stale}",
        )
    if old.kind is not new.kind:
        better = PRECEDENCE[new.kind] > PRECEDENCE[old.kind]
        return _decide(old, new, better, f"the table has {old.kind}, the new row is {new.kind}")
    if old_stale and old.provenance != new.provenance:
        return _decide(old, new, new.date > old.date, "both rows are stale, the later one stands")
    if old.check is not new.check:
        return _more_checked(old, new)
    if _same_config(new, old.config, new.config):
        return _refresh(old, new)
    if _same_card(old, new):
        return _compare_times(old, new)
    return _compare_cards(old, new)


def noise_of_difference(old: Row, new: Row) -> float:
    """By how many microseconds ``new`` must be faster to be called faster.

    Each side contributes its stated noise, or else the part of its interval that faces the other; independent
    errors add as squares, so two 95 % intervals make a 95 % test of the difference.
    """
    old_part = old.time_us - old.low_us if old.noise_us is None else old.noise_us
    new_part = new.high_us - new.time_us if new.noise_us is None else new.noise_us
    return math.hypot(old_part, new_part)


def _more_checked(old: Row, new: Row) -> Decision:
    return _decide(
        old, new, new.check > old.check, f"the table's row is {old.check}, the new one is {new.check}"
    )


def _same_card(old: Row, new: Row) -> bool:
    """Do their times compare? Nothing else is said of rows that name no card, as those that are computed."""
    return all(old.evidence.get(name) == new.evidence.get(name) for name in ("card", "driver"))


def _compare_cards(old: Row, new: Row) -> Decision:
    """Rows that two cards, or two drivers, measured."""
    before, now = Relative.from_evidence(old.evidence), Relative.from_evidence(new.evidence)
    if before is None or now is None or not _same_config(new, before.default, now.default):
        return _compare_far(old, new)
    gain, noise = math.log(before.ratio / now.ratio), noise_of_ratios(before, now)
    said = f"{now.ratio:.4g} of the default's time in the same rounds, the table's row {before.ratio:.4g} elsewhere"
    if gain > noise:
        return Decision(new, True, f"{said}: faster by {gain:.2%}, more than the noise of {noise:.2%}")
    return Decision(old, False, f"{said}: not faster by more than the noise of {noise:.2%}")


def _compare_far(old: Row, new: Row) -> Decision:
    """Without ratios to one default in both: by a final that both were in, else only times, of which cards may be the
    cause.
    """
    behind = _share_behind(new, old.config)
    if behind is not None and _share_behind(old, new.config) is None:
        said = f"the table's row was its runner-up in the same rounds, {behind:.2%} slower at least"
        return _decide(
            old, new, behind > BETWEEN_VISITS, f"{said}, two visits differ by {BETWEEN_VISITS:.2%}"
        )
    gain = old.time_us - new.time_us
    noise = noise_of_difference(old, new) + BETWEEN_CARDS * old.time_us
    said = f"faster by {gain:.4g} us on another card, and no ratios to one default to compare"
    if gain <= 0:
        return _compare_times(old, new)
    if gain > noise:
        return Decision(new, True, f"{said}, more than cards differ by ({noise:.4g} us)")
    return Decision(old, False, f"{said}: cards differ by as much ({noise:.4g} us)")


def _share_behind(row: Row, config: str) -> float | None:
    """By which share at least ``config`` was slower than ``row`` in the final that this won; None if it was not its
    runner-up there.
    """
    second = row.runner_up
    if (
        second is None
        or not _same_config(row, second.config, config)
        or row.evidence.get("versus") != "runner-up"
    ):
        return None
    low = row.evidence.get("ratio_low")
    return low - 1.0 if isinstance(low, int | float) and 0 < low < math.inf else None


def _same_config(row: Row, one: str, other: str) -> bool:
    """As they are printed, or as this version reads them: what was printed before a knob existed lacks it."""
    if one == other:
        return True
    try:
        configs = [parse_config(row.key.op, arch(row.key.arch), text) for text in (one, other)]
    except InputError:
        return False
    return configs[0] == configs[1]


def _refresh(old: Row, new: Row) -> Decision:
    if dataclasses.replace(new, date=old.date) == old:
        return Decision(old, False, "the same row again")
    return _decide(
        old, new, new.date >= old.date, "the same config recorded again, the later evidence stands"
    )


def _compare_times(old: Row, new: Row) -> Decision:
    gain, noise = old.time_us - new.time_us, noise_of_difference(old, new)
    if gain > noise:
        return Decision(new, True, f"faster by {gain:.4g} us, more than the noise of {noise:.4g} us")
    if gain > 0:
        return Decision(old, False, f"faster by {gain:.4g} us only, within the noise of {noise:.4g} us")
    return Decision(old, False, f"not faster: {new.time_us:.4g} us, the table has {old.time_us:.4g} us")


def _decide(old: Row, new: Row, take_new: bool, reason: str) -> Decision:
    return Decision(new if take_new else old, take_new, reason)
