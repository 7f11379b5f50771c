"""What a report says of clocked runs of an operator from outside: causes, and nothing that its kernels do not have."""

from __future__ import annotations

from kernel_space.build.build import build
from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from tests.published import B200
from tuner.report.charts.compare import clock_sections
from tuner.report.data.clock import Clocked, Clocks
from tuner.report.data.timeline import timeline_of
from tuner.report.data.words import words_of
from tuner.simulated.time import simulate


def clocked(role: str, text: str) -> Clocked:
    problem = registry.operator("rowstats").problem.parse("600,264")
    legal = legalize(registry.parse_config("rowstats", SM100A, text), problem, SM100A)
    assert isinstance(legal, Legal)
    compiled = build(legal.config, problem.problem_class, SM100A)
    time = simulate(compiled, legal.config, problem, B200(), record=True)
    words = words_of(registry.operator("rowstats"), registry.kernel("rowstats", "rows"))
    timeline = timeline_of(
        time.run.record or [], words=words, us_per_cycle=1e-3, launch_us=time.terms["launch"], end_us=time.us
    )
    return Clocked(
        roles=(role,), config=str(legal.config), time=time, timeline=timeline, tail_us=0.0, waves=""
    )


def test_sections_without_lanes_and_waves_are_left_out() -> None:
    """One launch against two of the same kernel's halves: the difference is named by what the clock charged."""
    shown = (clocked("winner", "fused=true"), clocked("default", "fused=false"))
    (section,) = clock_sections(Clocks(shown=shown))
    assert section.title == "Time by cause, simulated"
    assert "executing" in section.markdown and "the launch (1.99 µs)" in section.markdown
    for text in (section.markdown, section.body):
        assert "aves:" not in text and "tail wave" not in text
