"""``calibrate`` of a device without a clock: constants of its kernels' efforts, and what estimates by them are
worth.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.registry import parse_config
from kernel_space.core.stand_in import compiled_sizes
from kernel_space.places import layers
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
from tuner.calibration.spares import choose_spares, of_one_class
from tuner.cli.look.estimates import keep_estimates
from tuner.cli.options.common import results_of
from tuner.devices.classes import DeviceClass
from tuner.tables.dispatch import DispatchTable
from tuner.tables.row import Row
from tuner.tables.spares import Spare


def fit_command(args: argparse.Namespace, measured: Sequence[Measurement], device: DeviceClass) -> int:
    """Fits every operator of ``measured`` that has kernels with an effort and trials enough. With ``--spares`` chooses
    those of each."""
    if args.spares < 0:
        raise InputError(f"--spares must be a number of kernels, 0 or more, got {args.spares}")
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
    spares = {
        name: {"date": today, **_spares(own, fitted, _rows(args, device), device, args.spares)}
        for name in operators
        if args.spares and (own := of_one_class([one for one in samples if one.problem.operator == name]))
    }
    return keep_estimates(args, operators, device, spares)


def _rows(args: argparse.Namespace, device: DeviceClass) -> list[Row]:
    folders = [below(layer, device.name) for layer in layers(results_of(args))]
    return list(DispatchTable.over(folders, arch=device.arch).rows.values())


def _spares(
    samples: Sequence[Sample],
    families: Mapping[Names, Family],
    rows: Sequence[Row],
    device: DeviceClass,
    most: int,
) -> dict[str, Any]:
    """The record of an operator in ``spares.json`` but for its date. ``samples``: of one class."""
    first = samples[0].problem
    launched = [
        parse_config(row.key.op, device.arch, row.config)
        for row in rows
        if row.key.op == first.operator and compiled_sizes(row.key.problem) == compiled_sizes(first)
    ]
    found = choose_spares(samples, families, launched, arch=device.arch, rates=device, most=most)
    chosen = [
        Spare(problem=one.problem, config=str(one.config), us=one.us).to_record() for one in found.chosen
    ]
    return {
        "problems": found.problems,
        "rows_alone": [round(one, 4) for one in found.rows_alone],
        "with_spares": [round(one, 4) for one in found.with_spares],
        "spares": chosen,
    }


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
