"""In-order issue by control codes: timings worked out by hand; the stored loops against counts read off listings."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.compiled_then import (
    OPERANDS,
    behind_the_wait,
    issue_clocks,
    latency,
    loop,
    loops,
    other_warps,
)
from benchmarks.sass_issue import Instruction, decode, epilogue_tile, issue, k_tile, tile, tma_k_tile
from kernel_space.core.errors import InputError

COUNTS = Path(__file__).parents[2] / "data" / "svdquant_mma_warp_sass.csv"
R2UR_CLK = 13  # NVIDIA's tables for B100: to readers of the classes coupled, decoupled, tex, tma, udp


def one(text: str, stall: int, **control: int) -> Instruction:
    return Instruction(text=text, stall=stall, **control)


def test_seven_instructions_worked_by_hand() -> None:
    """S2R takes 20, a poll 15, a UTC instruction reads its registers after 10.

    0 S2R; 1 UTCCP, free at 11; 3 IADD; 20 LEA waits for S2R; 24 UIADD waits for UTCCP, long free; 26 SYNCS, free at 41;
    41 BRA waits for it, and the next would issue at 46. Again: S2R at 46, ..., BRA at 87: 46 clocks a pass.
    """
    code = [
        one("S2R R0, SR_CgaCtaId", 1, write=2),
        one("UTCCP.T.S tmem[UR9+0x80], gdesc[UR12]", 2, read=3),
        one("IADD3 R1, R1, 0x1, RZ", 2),
        one("LEA R3, R0, R3, 0x18", 4, wait=1 << 2),
        one("UIADD3 UR12, UPT, UPT, UR12, 0x2, URZ", 2, wait=1 << 3),
        one("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", 2, write=1),
        one("@!P0 BRA `(.L_x_1)", 5, wait=1 << 1),
    ]
    clocks = {"S2R": 20.0, "UTCCP": 10.0, "SYNCS": 15.0}
    assert issue(code, clocks.__getitem__, times=1) == 46
    assert issue(code, clocks.__getitem__, times=5) == 46


def test_a_scoreboard_is_free_when_all_that_set_it_are_done() -> None:
    """The first takes 50 from 0, the second 10 from 1: a wait for both ends at 50, not at 11."""
    code = [one("UTCCP a", 1, read=2), one("UTCBAR b", 1, read=2), one("UMOV c", 3, wait=1 << 2)]
    assert issue(code, {"UTCCP": 50.0, "UTCBAR": 10.0}.__getitem__, times=1) == 53


def test_latencies_of_several_sets_are_timed_side_by_side() -> None:
    code = [one("UTCOMMA a", 1, read=2), one("UIADD3 b", 2, wait=1 << 2)]
    several = issue(code, lambda _: np.array([0.0, 10.0, 30.0]), times=1)
    assert np.asarray(several).tolist() == [3.0, 12.0, 32.0]


def word(stall: int, write: int, read: int, wait: int) -> str:
    """The second half of an encoding: the control bits begin at bit 41 of it; below stand others."""
    return f"/* 0x{(wait << 11 | read << 8 | write << 5 | 1 << 4 | stall) << 41 | 0x1FE:016x} */"


LISTING = [
    ("UMOV UR4, URZ", (1, 7, 7, 0)),
    ".L_x_1:",
    ("@!UP1 UIADD3 UR5, UPT, UPT, UR5, 0x1, URZ", (4, 7, 7, 0b100)),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2", (2, 1, 7, 0)),
    ("@!P0 BRA `(.L_x_9)", (5, 7, 7, 0b10)),
    ("UTCCP.T.S tmem[UR9], gdesc[UR12]", (1, 7, 2, 0)),
    ("UTCOMMA gdesc[UR24], gdesc[UR26], tmem[UR19]", (1, 7, 2, 0)),
    ("BRA.U UP2, `(.L_x_3)", (5, 7, 7, 0)),
    ("BRA.U UP3, `(.L_x_2)", (6, 7, 7, 0)),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR29], R2", (2, 1, 7, 0)),
    ".L_x_2:",
    ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR19]", (3, 7, 3, 0)),
    ".L_x_3:",
    ("UTCBAR [UR4], URZ, UR66", (1, 7, 3, 0b1000)),
    ("BRA.U UP4, `(.L_x_1)", (5, 7, 7, 0)),
    ("EXIT", (5, 7, 7, 0)),
    ".L_x_9:",
    ("BRA `(.L_x_1)", (5, 7, 7, 0)),
]


def listing(items: Sequence[str | tuple[str, tuple[int, int, int, int]]] = LISTING) -> str:
    """As ``nvdisasm -c -hex`` prints it: two lines for an instruction."""
    lines = []
    for number, item in enumerate(items):
        if isinstance(item, str):
            lines.append(item)
        else:
            lines.append(f"        /*{number:04x}*/                   {item[0]} ;   /* 0x000fe200000000ff */")
            lines.append(f"                                                {word(*item[1])}")
    return "\n".join(lines)


def test_a_listing_is_decoded() -> None:
    code, labels = decode(listing())
    assert [(each.text, (each.stall, each.write, each.read, each.wait)) for each in code] == [
        item for item in LISTING if not isinstance(item, str)
    ]
    assert labels == {".L_x_1": 1, ".L_x_2": 9, ".L_x_3": 10, ".L_x_9": 13}
    assert code[1].opcode == "UIADD3"


def test_the_k_tile_is_the_way_with_lora_and_without_its_wait() -> None:
    path = [(each.text.split()[0], each.lora) for each in k_tile(listing())]
    assert path == [
        ("@!UP1", None), ("SYNCS.PHASECHK.TRANS64.TRYWAIT", None), ("@!P0", None), ("UTCCP.T.S", None),
        ("UTCOMMA", None), ("BRA.U", None), ("BRA.U", 0), ("UTCHMMA", 0), ("UTCBAR", None), ("BRA.U", None),
    ]  # fmt: skip


def test_a_listing_without_the_loop_is_refused() -> None:
    with pytest.raises(InputError, match="no loop around a UTCCP"):
        k_tile(listing().replace("UTCCP", "NOP"))


def test_lora_mmas_stand_where_the_source_publishes_them() -> None:
    """60 NVFP4 and 8 LoRA MMAs: its table of strides says 7, so behind numbers 0, 7, ..., 49."""
    code = tile(loop("then", 1, 5), k_tiles=15, lora_mmas=8)
    behind, mmas = [], 0
    for each in code:
        mmas += each.opcode == "UTCOMMA"
        if each.opcode == "UTCHMMA":
            behind.append(mmas - 1)
    assert (mmas, behind) == (60, [0, 7, 14, 21, 28, 35, 42, 49])


def test_stored_loops_have_the_counts_that_were_read_off() -> None:
    with COUNTS.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert len(rows) == 8
    for row in rows:
        path = loop(row["compiler"], int(row["num_lora_stage"]), int(row["num_ab_stage"]))
        base, lora = ([each for each in path if each.lora == which] for which in (None, 0))
        counted = [len(base), len(lora), sum(each.stall for each in base), sum(each.stall for each in lora)]
        assert counted == [
            int(row[name])
            for name in ("per_k_tile", "per_lora_mma", "stalls_per_k_tile", "stalls_per_lora_mma")
        ]
        assert sum(each.opcode == "R2UR" for each in path) == int(row["r2ur"])


def test_without_latencies_a_k_tile_takes_its_stall_counts() -> None:
    base = [each for each in loop("then", 1, 5) if each.lora is None]
    assert issue(base, lambda _: 0.0) == 546


def uniform_registers(text: str) -> set[int]:
    """Those that a tcgen05 instruction names; a matrix descriptor has two."""
    named = re.findall(r"(gdesc|tmem|idesc)?\[UR(\d+)", text)
    return {int(number) + more for kind, number in named for more in range(2 if kind == "gdesc" else 1)}


def test_r2ur_is_in_the_stall_counts() -> None:
    """It sets no scoreboard, and the first reader of its register stands exactly its fixed latency behind it."""
    path = [each for each in loop("then", 1, 5) if each.lora is None]
    now, written, distances = 0, {}, []
    for each in path * 2:
        if each.opcode.startswith("UTC"):
            distances += [now - written[name] for name in uniform_registers(each.text) if name in written]
        found = re.match(r"(?:@\S+ )?(R2UR|U\w+)\S* (?:U?P\w+, )?UR(\d+),", each.text)
        if found and found.group(1) == "R2UR":
            assert each.write == each.read == 7
            written[int(found.group(2))] = now
        elif found:
            written.pop(int(found.group(2)), None)
        now += each.stall
    assert len(distances) > 100
    assert min(distances) == R2UR_CLK


def test_loops_of_today_move_nothing_to_uniform_registers() -> None:
    today = [path for (compiler, _, _), path in loops().items() if compiler == "now"]
    assert len(today) == 4
    assert not any(each.opcode == "R2UR" for path in today for each in path)


def test_only_what_is_known_to_set_a_scoreboard_has_a_latency() -> None:
    assert latency("SYNCS", 30.0, 20.0) == 20.0
    assert latency("UTCOMMA", 30.0, 20.0) == 30.0
    assert OPERANDS.low < OPERANDS.value < OPERANDS.high
    with pytest.raises(InputError, match="no latency is known of LDS"):
        latency("LDS", 30.0, 20.0)
    with pytest.raises(InputError, match="no loop of compiler then with num_lora_stage=1 num_ab_stage=4"):
        loop("then", 1, 4)


PLAIN = (1, 7, 7, 0)
OTHER_WARPS = [
    ".L_x_1:",
    ("UTMALDG.2D.2CTA [UR8], [UR26], desc[URZ]", PLAIN),  # LoRA: once per output tile
    ".L_x_2:",
    ("UIADD3 UR4, UPT, UPT, UR4, 0x1, URZ", (4, 7, 7, 0)),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x28], R2", (2, 1, 7, 0)),
    ("@!P0 BRA `(.L_x_9)", (5, 7, 7, 0b10)),
    ("@P1 BRA `(.L_x_3)", (5, 7, 7, 0)),
    ("@P0 SYNCS.ARRIVE.TRANS64 RZ, [UR4], R2", (3, 7, 2, 0)),
    ".L_x_3:",
    ("UTMALDG.3D.2CTA [UR32], [UR40], desc[URZ]", (1, 7, 4, 0)),
    ("UMOV UR8, UR4", (7, 7, 7, 0b100)),
    ("UTMALDG.4D.2CTA [UR8], [UR22], desc[URZ]", (1, 7, 4, 0)),
    ("BRA.U UP0, `(.L_x_2)", (6, 7, 7, 0b10000)),
    ("BRA.U UP1, `(.L_x_1)", (5, 7, 7, 0)),
    ".L_x_4:",
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P2, [R3+URZ+0x50], R4", (3, 2, 7, 0)),
    ("MUFU.RCP R6, R6", (10, 1, 7, 0)),
    ("@!P2 BRA `(.L_x_9)", (6, 7, 7, 0b100)),
    ("BSYNC B0", (5, 7, 7, 0)),
    ("LDTM.x32 R4, tmem[UR8]", (4, 1, 7, 0b10)),
    ("STS.128 [R46], R8", (1, 7, 1, 0b10)),
    ("@P2 BRA `(.L_x_5)", (6, 7, 7, 0)),
    ("UTMASTG.3D [UR8], [UR12], desc[URZ]", (8, 7, 2, 0)),
    ".L_x_5:",
    ("SYNCS.ARRIVE.TRANS64.RED.ART0 RZ, [R44+URZ], R5", (9, 7, 2, 0)),
    ("@!P0 BRA `(.L_x_4)", (5, 7, 7, 0)),
    ("EXIT", PLAIN),
    ".L_x_9:",
    ("BRA `(.L_x_2)", PLAIN),
]


def test_the_k_tile_of_the_tma_warp_is_its_inner_loop() -> None:
    """From .L_x_2 to its branch, stall counts 4 2 5 5 3 1 7 1 6; behind the wait up to the last load: 5 5 3 1 7."""
    path = tma_k_tile(listing(OTHER_WARPS))
    assert [each.stall for each in path] == [4, 2, 5, 5, 3, 1, 7, 1, 6]
    assert behind_the_wait(tuple(path)) == 21


def test_the_epilogue_begins_behind_the_wait_for_the_accumulator() -> None:
    """Reciprocal and wait are done while it fills; the branch around the store is not taken, the arrival is last."""
    path = epilogue_tile(listing(OTHER_WARPS))
    assert [each.opcode for each in path] == ["BSYNC", "LDTM", "STS", "BRA", "UTMASTG", "SYNCS"]
    assert issue_clocks(tuple(path), 100.0) == 5 + 4 + 1 + 6 + 8 + 9
    with pytest.raises(InputError, match="1 LDTM and 0 UTMASTG"):
        epilogue_tile(listing(OTHER_WARPS).replace("UTMASTG", "NOP"))


def test_issue_is_stall_counts_and_a_poll() -> None:
    """34 of stall counts; a poll of 100 holds the branch up, 2 of it are its stall count. Operands are read at once."""
    path = tuple(tma_k_tile(listing(OTHER_WARPS)))
    assert issue_clocks(path, 100.0) == 34 + 100 - 2
    assert issue_clocks(path, 1.0) == 34


# Instructions, stall counts and R2UR, counted in the listings by another reader of them than ``sass_issue``.
TMA_COUNTS = {
    ("then", 0, 7): (50, 134, 0), ("then", 1, 5): (84, 248, 20), ("then", 2, 4): (49, 123, 0),
    ("then", 3, 2): (48, 120, 0), ("now", 0, 7): (48, 131, 0), ("now", 1, 5): (49, 135, 0),
    ("now", 2, 4): (48, 125, 0), ("now", 3, 2): (47, 122, 0),
}  # fmt: skip
EPILOGUE_COUNTS = {
    ("then", 0, 7): (148, 349), ("then", 1, 5): (215, 680), ("then", 2, 2): (149, 349), ("then", 2, 4): (149, 349),
    ("then", 3, 2): (149, 349), ("now", 0, 7): (145, 334), ("now", 1, 5): (146, 334), ("now", 2, 4): (146, 334),
    ("now", 3, 2): (146, 334),
}  # fmt: skip


def test_stored_paths_of_the_other_warps_have_the_counts_that_were_read_off() -> None:
    tma, epilogue = other_warps("tma"), other_warps("epilogue")
    assert set(tma) == set(epilogue) == set(loops()) == set(TMA_COUNTS) | {("then", 2, 2)}
    for key, counts in TMA_COUNTS.items():
        path = tma[key]
        moves = sum(each.opcode == "R2UR" for each in path)
        assert (len(path), sum(each.stall for each in path), moves) == counts, key
        assert [sum(each.opcode == name for each in path) for name in ("UTMALDG", "SYNCS")] == [4, 2]
    for key, (length, stalls) in EPILOGUE_COUNTS.items():
        path = epilogue[key]
        assert (len(path), sum(each.stall for each in path)) == (length, stalls), key
        assert [sum(each.opcode == name for each in path) for name in ("LDTM", "UTMASTG", "STS")] == [
            4,
            4,
            16,
        ]
