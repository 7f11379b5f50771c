"""The process that owns one card: ``python -m tuner.gpu.worker --card N``. Loads, checks and times; never compiles.

One JSON object per line: requests on stdin, answers on a descriptor of its own (what was stdout; whatever else
prints goes to stderr), one answer per request, in order. It may be killed at any time. It imports neither the DSL
nor Optuna: torch, llvmlite and ctypes are enough.

| request ``op`` | fields | answer |
|---|---|---|
| ``health`` | | ``health``: uuid, name, sm_count, driver, bytes in all and free; the self test passed |
| ``check`` | ``candidate``, ``cases``, ``repeats``, ``seed`` | ``report``: what was checked, worst error |
| ``time`` | ``candidate``, ``case``, ``fidelity`` | ``samples`` of ``bench.time_launches`` |
| ``finals`` | ``entries`` of ``candidate``, ``case``; ``options`` | ``samples`` per entry, of ``bench.interleave`` |
| ``unload`` | | drops loaded objects and operands; ``free_bytes`` |
| ``shutdown`` | | the process ends |

``candidate`` is ``candidate.Loadable.record()``, ``case`` is ``candidate.Case.record()``. ``fidelity``, ``samples`` and
``options`` are ``dataclasses.asdict`` of the dataclasses in ``bench``: the worker calls

    bench.time_launches(launch, sets, bench.Fidelity(**fidelity), telemetry) -> bench.Samples
    bench.interleave([launch, ...], sets, bench.FinalsOptions(**options), telemetry) -> list[bench.Samples]

``launch(i)`` enqueues one launch with operand set ``i`` (0 <= i < ``sets``) on torch's current stream, allocates
nothing and may be captured in a CUDA graph. ``telemetry`` is ``telemetry.Telemetry(uuid)``, made once per process.
Sets are so many that their bytes exceed three times the L2 (at least 2).

Every answer has ``ok``. With ``ok`` false: ``status`` (a word of ``outcome.Status``), ``reason`` (one line) and
``fatal``: the context is lost (a sticky CUDA error, a launch that does not end), so that the parent must replace the
process. While it works on a request it writes lines with a ``phase`` (``load``, ``operands``, ``launch``,
``compare``, ``time``), so that the parent can say where a worker hung or died.
"""
