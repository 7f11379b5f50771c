"""Candidates of the sm_90a kernels by their printed form: legal ones, and why others are not."""

from __future__ import annotations

from typing import Any

from kernel_space.core.arch import SM90A
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

RING, EXPAND, SMALL_M = "kernel=sm90a_ring", "kernel=sm90a_expand", "kernel=sm90a_small_m"
PROBLEM = GemmProblem.parse("4352,3840,3072,128")


def parse(text: str) -> Any:
    """The config of the kernel that ``text`` begins with."""
    return parse_config(GemmProblem.operator, SM90A, text)


def legal(text: str, problem: GemmProblem = PROBLEM) -> Legal:
    verdict = legalize(parse(text), problem, SM90A)
    assert isinstance(verdict, Legal), verdict
    return verdict


def rejected(text: str, problem: GemmProblem = PROBLEM) -> Rejection:
    verdict = legalize(parse(text), problem, SM90A)
    assert isinstance(verdict, Rejection), verdict
    return verdict
