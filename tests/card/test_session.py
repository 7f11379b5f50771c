"""What a card's session keeps between requests, without a card."""

from __future__ import annotations

import dataclasses

import pytest
from torch import device

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.worker import session
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.session import CardSession

SM_COUNT = 132
CANDIDATE = Loadable(object_path="kernel.o", object_sha256="a" * 64, prefix="kernel", arguments=(), config="")


def test_one_object_has_a_grid_for_each_number_of_ctas_per_sm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of a persistent kernel is bounded by what fits an SM, which the object's bytes do not say."""
    monkeypatch.setattr(session, "load_candidate", lambda *_: object())
    monkeypatch.setattr(
        session, "max_active_clusters", lambda one, problem, index, sm_count: sm_count * one.ctas_per_sm
    )
    card = CardSession.__new__(CardSession)  # no card: only what _load touches
    card._phase, card._runtime, card._sm_count, card._device = (
        lambda _: None,
        None,
        SM_COUNT,
        device("cuda", 0),
    )
    card._loaded, card._clusters = {}, {}
    case = Case(problem=GemmProblem.parse("64,3840,3072,128"), workspace_bytes=0, zeroed_bytes=0)
    grids = [card._load(dataclasses.replace(CANDIDATE, ctas_per_sm=n), case)[1] for n in (1, 2, 1)]
    assert grids == [SM_COUNT, 2 * SM_COUNT, SM_COUNT]
