"""The record of a point with which nothing is done."""

from __future__ import annotations

from kernel_space.core.rules import Rejection
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import FakeDevice
from tuner.search.trial_of import illegal_trial
from tuner.trials.outcome import Status

PROBLEM = GemmProblem.parse("17,3840,3072,64", lora_dtype="bf16", out_dtype="bf16")
CONFIG = KernelConfigSm100a(mma_tiler_mn=(128, 64), cluster_shape_mn=(1, 1))


def test_illegal_point_names_its_rule() -> None:
    trial = illegal_trial(CONFIG, Rejection("epi_tile", "128 does not divide 64"), PROBLEM, FakeDevice())
    assert (trial.number, trial.status, trial.resolved) == (-1, Status.ILLEGAL, "")
    assert trial.reason == "epi_tile: 128 does not divide 64"
