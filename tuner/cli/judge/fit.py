"""``calibrate`` of a device without a clock: constants of its kernels' efforts, and what estimates by them are
worth.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from kernel_space.core.errors import InputError
from tuner.calibration.fit import (
    Constants,
    Family,
    LeftOut,
    Names,
    Sample,
    by_family,
    by_kernel,
    error_of,
    families,
    leave_layers_out,
    losses,
    samples_of,
)
from tuner.calibration.measured_trials import Measurement
from tuner.cli.look.estimates import keep_estimates
from tuner.devices.classes import DeviceClass


def fit_command(args: argparse.Namespace, measured: Sequence[Measurement], device: DeviceClass) -> int:
    """Fits every operator of ``measured`` that has kernels with an effort and trials enough."""
    samples = [
        sample
        for family in by_family(samples_of(measured, device.arch, device)).values()
        for sample in family
    ]
    fitted, left_out = families(samples), leave_layers_out(samples)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    operators = {
        name: {"date": today, **_fitted(name, samples, fitted, left_out)}
        for name in sorted({one.problem.operator for one in samples})
    }
    if not operators:
        raise InputError(
            f"none of the {len(measured)} trials is of a kernel that states its effort, or too few are"
        )
    return keep_estimates(args, operators, device)


def _fitted(
    operator: str, samples: Sequence[Sample], families: Mapping[Names, Family], left_out: Sequence[LeftOut]
) -> dict[str, Any]:
    """The operator's record but for its date."""
    own = [one for one in samples if one.problem.operator == operator]
    left = [one for one in left_out if one.problem.operator == operator]
    mean, worst = losses(left) if left else (None, None)
    return {
        "problems": len({one.problem for one in own}),
        "layers": len({one.layer for one in own}),
        "loss": mean and round(mean, 4),
        "worst_loss": worst and round(worst, 4),
        "kernels": {
            key[1]: _kernel(trials, families[trials[0].names].of(key), error_of(key[1], left))
            for key, trials in by_kernel(own).items()
        },
    }


def _kernel(samples: Sequence[Sample], constants: Constants, error: float | None) -> dict[str, Any]:
    return {
        "trials": len(samples),
        "error": error and round(error, 4),
        "factors": {name: round(value, 5) for name, value in constants.factors.items()},
        "shares": {name: round(value, 5) for name, value in constants.shares.items()},
    }
