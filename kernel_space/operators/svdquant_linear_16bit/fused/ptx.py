"""PTX of the kernel ``fused``: codes of neighbours along K, copies, fences."""

from typing import Any

from cutlass import Int32, Int64

from kernel_space.operators.nvfp4_quantize.parts.ptx import inline

_GATHER = """{
.reg .b32 p, q;
prmt.b32 p, $1, $2, $5;
prmt.b32 q, $3, $4, $5;
prmt.b32 $0, p, q, 0x5410;
}"""
# Nibbles 0 .. 3 below, 1 .. 3 again above: those of a byte are then 16 bits apart, as ``unpack_pairs`` wants them.
_EVEN = "{\n.reg .b32 t;\nshl.b32 t, $1, 12;\nlop3.b32 $0, $1, t, 0x0000FFFF, 0xE4;\n}"
_ODD = "{\n.reg .b32 t, u;\nshr.b32 t, $1, 4;\nshr.b32 u, $1, 16;\nlop3.b32 $0, u, t, 0x0000FFFF, 0xE4;\n}"


def gather_octets(words: Any, selector: Any) -> Any:
    """A lane's byte of each of four words: its two codes of four octets of K. ``selector``: ``octet_selector``."""
    return inline(_GATHER, "r", *(("r", word) for word in words), ("r", selector))[0]


def octet_selector(quarter: Any) -> Any:
    """For ``gather_octets``: byte ``quarter`` of the first word, then that of the second."""
    return quarter | (quarter + 4) << 4


def pairs_apart(gathered: Any, odd: int) -> Any:
    """Of the two octets of a half of ``gathered``: codes (n0, n4) are the first pair, (n2, n6) the second."""
    return inline(_ODD if odd else _EVEN, "r", ("r", gathered))[0]


def multiply_pair(a: Any, b: Any) -> Any:
    """Two bf16 numbers times two others, each rounded to nearest even."""
    return inline("mul.rn.bf16x2 $0, $1, $2;", "r", ("r", a), ("r", b))[0]


def copy_bulk(target: Any, source: Any, size: Any, barrier: Any) -> None:
    """``size`` bytes, a multiple of 16, from global ``source`` to shared ``target``; counted by ``barrier``."""
    kind = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    operands = (("r", target), ("l", Int64(source)), ("r", Int32(size)), ("r", barrier))
    inline(f"{kind} [$0], [$1], $2, [$3];", "", *operands, effects=True)


def fence_proxies() -> None:
    """Orders this thread's accesses of memory before and behind, ordinary ones and those of TMA."""
    inline("fence.proxy.async;", "", effects=True)
