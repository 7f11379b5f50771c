"""Constants of efforts: the formula by hand, constants found again, layers left out, the command."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.registry import kernel, parse_config
from kernel_space.core.traits import Effort, traits_of
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.calibration.fit import (
    Constants,
    Sample,
    by_family,
    by_kernel,
    error_of,
    families,
    fit,
    leave_layers_out,
    losses,
    stacked,
)
from tuner.cli.main import main
from tuner.devices.classes import DEVICE_CLASSES

H200 = DEVICE_CLASSES["h200"]
CONFIG = parse_config(
    GemmProblem.operator,
    SM90A,
    "kernel=sm90a_expand tile_mnk=128x200x128 num_ab_stage=4 num_dq_stage=6 num_lora_stage=2",
)
HIDDEN = Constants(factors={"flops": 1.3, "bytes": 0.7, "start": 2.0}, shares={"slow": 0.2})


def effort(steps: float, flops: float, bytes_us: float, slow: float) -> Effort:
    return Effort(
        steps=steps,
        turns=1.0,
        step={"flops": flops},
        turn={},
        beside={"bytes": bytes_us},
        once={"start": 1.5},
        choices={"slow": slow},
    )


def samples(count: int, layers: int = 4) -> list[Sample]:
    """Times that the hidden constants make, of problems spread over ``layers``."""
    draw, found = random.Random(5), []
    for number in range(count):
        one = effort(draw.randint(1, 60), draw.uniform(0.1, 2), draw.uniform(0.5, 60), number % 2)
        problem = GemmProblem(m=64 + number // 8, k=1024 * (1 + number % layers), n=512, r=0)
        us = one.us(HIDDEN.factors, HIDDEN.shares)
        found.append(Sample(problem=problem, config=CONFIG, effort=one, us=us, weight=1.0, best_us=us))
    return found


def test_the_formula_by_hand() -> None:
    """3 steps of the overlap of 4 and 5, a turn of 6; 10 us of bytes meanwhile; then 2 us, and 10 % for a choice."""
    one = Effort(
        steps=3,
        turns=1,
        step={"a": 4, "b": 2.5},
        turn={"c": 6},
        beside={"d": 10},
        once={"e": 1},
        choices={"f": 1},
    )
    step = (4**3 + 5**3) ** (1 / 3)
    expected = (((3 * step + 6) ** 3 + 10**3) ** (1 / 3) + 2) * 1.1
    factors = {"a": 1, "b": 2, "c": 1, "d": 1, "e": 2}
    assert one.us(factors, {"f": math.log(1.1)}) == pytest.approx(expected)
    many = stacked([one, dataclasses.replace(one, choices={"f": 0})])
    assert many.us(factors, {"f": math.log(1.1)}) == pytest.approx([expected, expected / 1.1])


def test_hidden_constants_are_found_again() -> None:
    found = fit(samples(200))
    assert found.factors == pytest.approx(HIDDEN.factors, rel=0.02)
    assert found.shares == pytest.approx(HIDDEN.shares, abs=0.02)


def test_a_constant_that_no_time_tells_of_stays_at_its_nominal_rate() -> None:
    silent = [
        dataclasses.replace(one, effort=dataclasses.replace(one.effort, turn={"idle": 0.0}))
        for one in samples(60)
    ]
    assert fit(silent).factors["idle"] == pytest.approx(1)


def test_a_layer_is_left_out_with_all_its_problems() -> None:
    """The times of one layer are ten times as long: only constants that never saw it are wrong by that much."""
    own = samples(160)
    odd = [
        dataclasses.replace(one, us=10 * one.us, best_us=10 * one.us) if one.problem.k == 1024 else one
        for one in own
    ]
    left = leave_layers_out(odd)
    assert {one.problem.k for one in left} == {1024, 2048, 3072, 4096}
    errors = {
        k: [e for one in left if one.problem.k == k for e in one.errors["sm90a_expand"]] for k in (1024, 2048)
    }
    assert errors[1024] == pytest.approx([-math.log(10)] * len(errors[1024]), abs=0.1)
    assert max(map(abs, errors[2048])) > 0.1  # disturbed by the long ones
    assert error_of("sm90a_expand", leave_layers_out(own)) == pytest.approx(0, abs=0.02)
    assert error_of("another", left) is None
    assert leave_layers_out(samples(160, layers=1)) == []


def test_the_loss_is_of_what_estimates_choose() -> None:
    """Of two trials of each problem the estimates choose by the effort; one problem was measured the other way."""
    pairs = []
    for number, one in enumerate(samples(120)):
        problem = dataclasses.replace(one.problem, m=number + 1)
        slow = dataclasses.replace(one.effort, choices={"slow": 2.0})
        us = slow.us(HIDDEN.factors, HIDDEN.shares)
        fast = dataclasses.replace(one, problem=problem)
        pairs += [fast, dataclasses.replace(fast, effort=slow, us=us)]
    mean, worst = losses(leave_layers_out(pairs))
    assert (mean, worst) == (pytest.approx(1), pytest.approx(1))
    pairs[1] = dataclasses.replace(pairs[1], us=pairs[0].us / 2, best_us=pairs[0].us / 2)
    pairs[0] = dataclasses.replace(pairs[0], best_us=pairs[0].us / 2)
    mean, worst = losses(leave_layers_out(pairs))
    assert worst == pytest.approx(2) and mean == pytest.approx(2 ** (1 / 120))


RING = parse_config(
    GemmProblem.operator,
    SM90A,
    "kernel=sm90a_ring tile_mnk=128x128x128 num_ab_stage=4 num_dq_stage=4 num_lora_stage=1 num_c_stage=1",
)


def test_few_trials_are_not_fitted() -> None:
    assert by_family(samples(23)) == {} and families(samples(23)) == {}
    assert list(by_kernel(samples(24))) == [("svdquant_gemm", "sm90a_expand")]


def test_a_kernel_with_few_trials_stays_near_its_family() -> None:
    """Three trials of another kernel, twice as slow for their bytes: its own factor, the family's for the rest."""
    slower = dataclasses.replace(HIDDEN, factors={**HIDDEN.factors, "bytes": 2 * HIDDEN.factors["bytes"]})
    few = []
    for steps, flops, bytes_us in ((1, 0.1, 60.0), (2, 0.1, 50.0), (1, 0.2, 40.0)):
        one = effort(steps, flops, bytes_us, 0)
        us = one.us(slower.factors, slower.shares)
        problem = GemmProblem(m=64, k=1024, n=512, r=0)
        few.append(Sample(problem=problem, config=RING, effort=one, us=us, weight=1.0, best_us=us))
    (family,) = families([*samples(200), *few]).values()
    own, other = (family.of(("svdquant_gemm", name)) for name in ("sm90a_ring", "sm90a_expand"))
    assert own.factors["bytes"] == pytest.approx(slower.factors["bytes"], rel=0.05)
    assert own.factors["flops"] == pytest.approx(HIDDEN.factors["flops"], rel=0.05)
    assert other.factors == pytest.approx(HIDDEN.factors, rel=0.05)
    assert family.of(("svdquant_gemm", "never timed")) is family.common


def test_a_kernel_that_only_the_left_out_layer_has_is_judged_by_its_family() -> None:
    own = samples(160)
    odd = [dataclasses.replace(one, config=RING) if one.problem.k == 1024 else one for one in own]
    assert error_of("sm90a_ring", leave_layers_out(odd)) == pytest.approx(0, abs=0.02)


# ------------------------------------------------------------------ the kernels for Hopper


def hopper(text: str, shape: str) -> Effort:
    config = parse_config(GemmProblem.operator, SM90A, text)
    stated = traits_of(kernel(GemmProblem.operator, config.kernel)).effort
    assert stated is not None
    return stated(config, GemmProblem.parse(shape), H200)


def test_effort_of_a_tile_by_hand() -> None:
    """4352,3840,3072: 24 x 22 tiles of 128x200 are 4 turns of 132; 30 steps of K and one of R in each."""
    one = hopper(str(CONFIG), "4352,3840,3072,128")
    assert (one.turns, one.steps) == (4, 4 * 31)
    assert one.step["mma"] == pytest.approx(128 * 200 * 128 / 2048 / 1750)
    moved = 3072 * 3840 * 9 / 16 + 4352 * 3840 * 9 / 16 + 2 * (128 * (4352 + 3072) + 4352 * 3072)
    assert one.beside["memory"] == pytest.approx(moved / 4.8e12 * 1e6)
    assert one.once["expanding"] == pytest.approx(4352 * 3840 * (2 + 9 / 16) / 4.8e12 * 1e6)


def test_split_and_stream_k_divide_the_steps() -> None:
    """128x3072 are 24 tiles of 128x128: 31 steps alone, 8 by four splits; 24 / 132 of them where they are dealt out."""
    text = "kernel=sm90a_expand tile_mnk=128x128x128 num_ab_stage=4 num_dq_stage=4 num_lora_stage=1"
    whole, split, stream = (
        hopper(f"{text}{more}", "128,3840,3072,0") for more in ("", " split_k=4", " stream_k=true")
    )
    assert (whole.steps, split.steps, stream.steps) == (30, 8, pytest.approx(30 * 24 / 132))
    assert (whole.once["meeting"], whole.once["partial_sums"]) == (0, 0)
    assert split.once["meeting"] > 0 and stream.once["partial_sums"] > 0


def test_a_launch_that_overlaps_with_none_takes_a_time_longer_and_not_a_share() -> None:
    text = "kernel=sm90a_expand tile_mnk=128x128x128 num_ab_stage=4 num_dq_stage=4 num_lora_stage=1"
    alone, overlapping = (hopper(f"{text} use_pdl={pdl}", "64,3840,3072,0") for pdl in ("false", "true"))
    assert (alone.once["alone"], overlapping.once["alone"]) == (1.0, 0.0)
    assert alone.choices == overlapping.choices


def test_warps_that_walk_alone_read_weights_for_every_tile_of_act() -> None:
    """17 rows are three tiles of 8 and one of 32. Rings are shared by a CTA: its tiles find weights in the L2."""
    text = "kernel=sm90a_small_m tile_mnk={} num_ab_stage=4 num_dq_stage={} register_operand=wgt"
    three, one, ring = (
        hopper(text.format(tile, slots), "17,3840,3072,0")
        for tile, slots in (("32x8x128", 0), ("32x32x128", 0), ("64x8x128", 4))
    )
    assert three.beside["memory"] == pytest.approx(3 * one.beside["memory"])
    assert ring.beside["memory"] == pytest.approx(one.beside["memory"])


# ------------------------------------------------------------------ the command


def journal(folder: Path, count: int) -> Path:
    """Trials of the H200 that take as long as the hidden factors of the kernel's own effort say."""
    tiles, lines = ("64x128x128", "128x128x128", "128x200x128", "128x256x128"), []
    draw = random.Random(3)
    for number in range(count):
        warpgroups = 1 if number % 4 == 0 else 2
        text = (
            f"kernel=sm90a_expand tile_mnk={tiles[number % 4]} consumer_warpgroups={warpgroups} num_ab_stage=4 "
            f"num_dq_stage=4 num_lora_stage=1 split_k={draw.choice((1, 2, 3))}"
        )
        shape = f"{draw.choice((64, 256, 1024))},{draw.choice((3840, 3072, 12288))},3072,128"
        one = hopper(text, shape)
        us = 1.4 * one.us(dict.fromkeys(one.needs, 1.0), dict.fromkeys(one.choices, 0.0))
        lines.append(f'"{shape}",{parse_config("svdquant_gemm", SM90A, text)},measured,{us},h200')
    path = folder / "trials.csv"
    path.write_text("problem,config,kind,us,device\n" + "\n".join(lines) + "\n")
    return path


def test_calibrate_writes_estimates_beside_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = journal(tmp_path, 60)
    command = ["calibrate", str(path), "--out", str(tmp_path), "--json"]
    assert main([*command, "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] is None and not (tmp_path / "h200").exists()
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    found = json.loads((tmp_path / "h200" / "estimates.json").read_text())
    assert found["operators"] == told["operators"] and found["device"] == "h200"
    own = found["operators"]["svdquant_gemm"]
    assert own["layers"] == 3 and own["kernels"]["sm90a_expand"]["trials"] > 24
    assert own["kernels"]["sm90a_expand"]["error"] < 0.1
    assert main(command[:-1]) == 0
    assert "svdquant_gemm:" in capsys.readouterr().out


def test_what_calibrate_cannot_fit_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = journal(tmp_path, 5)
    assert main(["calibrate", str(path), "--out", str(tmp_path)]) == 2
    assert "or too few are" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main(["calibrate", str(tmp_path / "none"), "--out", str(tmp_path)]) == 2
    assert "no trials.parquet in" in capsys.readouterr().err
