"""Probes that must fault on every executor. They come last: a fault ends the process that ran it."""

from __future__ import annotations

import dataclasses

from kernel_space.selfcheck.probes.tma_load import load
from kernel_space.selfcheck.probes.tma_store import store
from kernel_space.selfcheck.text.probe import MapSpec, Probe
from kernel_space.selfcheck.text.ptx_text import per_thread

_ROOM = ".shared .align 16 .b8 room[256];"


def probes() -> list[Probe]:
    return [*_copies(), *_accesses()]


def _copies() -> list[Probe]:
    source = MapSpec(buffer="in", dtype="uint8", dims=(128, 8), strides=(128,), box=(32, 4))
    target = dataclasses.replace(source, buffer="out")
    words = dataclasses.replace(target, dtype="uint32", dims=(32, 8), box=(8, 4))
    return [
        _load("load_column", "coordinate 0 of a load that is not a multiple of 16 bytes", source, (8, 1)),
        _load(
            "load_address", "a load to an address that is a multiple of 64 only", source, (16, 1), offset=64
        ),
        _store("store_column", "coordinate 0 of a store that is not a multiple of 16 bytes", target, (8, 1)),
        _store("store_negative_column", "a store at a negative column", target, (-16, 1)),
        _store("store_negative_row", "a store at a negative row", target, (0, -1)),
        _store("store_all_negative", "a store of a box that lies outside altogether", target, (0, -4)),
        _store("reduce_negative_row", "a reduction at a negative row", words, (0, -1), how="add"),
    ]


def _load(name: str, asks: str, spec: MapSpec, at: tuple[int, ...], offset: int = 0) -> Probe:
    return dataclasses.replace(load("x", asks, spec, at, offset=offset), name=f"fault.{name}")


def _store(name: str, asks: str, spec: MapSpec, at: tuple[int, ...], how: str = "") -> Probe:
    return dataclasses.replace(store("x", asks, spec, at, how=how), name=f"fault.{name}")


def _accesses() -> list[Probe]:
    vector = """\
        mov.u32 %r0, room;
        ld.shared.v4.b32 {%x, %r1, %r2, %r3}, [%r0+8];
        add.u32 %x, %x, %r1;
        add.u32 %x, %x, %r2;
        add.u32 %x, %x, %r3;"""
    bounds = "mov.u32 %r0, room;\nadd.u32 %r0, %r0, 0x40000;\nld.shared.b32 %x, [%r0];"
    null = "mov.u64 %q0, 0;\nld.global.b32 %x, [%q0];"
    cases = (
        ("shared_alignment", "a 16-byte shared load at a multiple of 8", vector, _ROOM),
        ("global_alignment", "a 4-byte global load at an odd address", "ld.global.b32 %x, [%in+1];", ""),
        ("shared_bounds", "a shared load far behind the CTA's memory", bounds, _ROOM),
        ("trap", "trap", "mov.u32 %x, 1;\ntrap;", ""),
        ("null", "a global load at address 0", null, ""),
    )
    return [per_thread(f"fault.{name}", asks, code, shared=shared) for name, asks, code, shared in cases]
