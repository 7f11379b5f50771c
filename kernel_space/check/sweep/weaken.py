"""Instructions removed, and synchronisation that says less than it did."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_space.check.sweep.mutant import Kernel, Mutant, is_wait
from kernel_space.check.sweep.text import Statement

REMOVED, WEAKENED = "removed", "weakened"
_SCOPED = ("fence", "membar", "ld", "st", "atom", "red", "mbarrier")
_NARROWER = {"sys": ("cluster", "cta"), "gpu": ("cluster", "cta"), "gl": ("cta",), "cluster": ("cta",)}
_LAXER: dict[str, dict[str, tuple[str, ...]]] = {
    "acq_rel": {"atom": ("acquire", "release", "relaxed"), "red": ("relaxed",), "fence": ()},
    "release": {"st": ("relaxed",), "red": ("relaxed",), "atom": ("relaxed",), "barrier": ("relaxed",)},
    "acquire": {"ld": ("relaxed",), "atom": ("relaxed",)},
    "sc": {"fence": ("acq_rel",)},
}
_PLAIN = {"ld": ("acquire", "relaxed", "volatile"), "st": ("release", "relaxed", "volatile")}
_SPACES = {"shared::cta": "global", "shared::cluster": "global", "global": "shared::cta"}
_ORDERED = ("acq_rel", "acquire", "release", "relaxed", "sc")


def removed(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    if one.tokens[0] in ("elect", "shfl", "vote", "match", "redux"):
        return  # what they give is another thread's, or another value: see there
    line = ""
    if is_wait(one):
        line = f"\tsetp.eq.u32 {one.operands[0]}, 0, 0;"
    elif one.tokens[0] in ("atom", "ld") and one.operands[0] != "_":
        kind = "b64" if {"u64", "b64", "s64", "f64"} & {*one.tokens} else "b32"
        line = f"\tmov.{kind} {one.operands[0]}, 0;"
    yield kernel.mutant(REMOVED, "deleted", one, line)


def weakened(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    for words, what in _weaker_words(one):
        head = one.head[: -len(one.instr.opcode)] + ".".join(words)
        line = f"\t{head} {', '.join(one.operands)};" if one.operands else f"\t{head};"
        yield kernel.mutant(WEAKENED, what, one, line)
    yield from _halved_barriers(kernel, one)


def _weaker_words(one: Statement) -> Iterator[tuple[list[str], str]]:
    """(words of the opcode, what changed)."""
    tokens = list(one.tokens)
    if tokens[:2] == ["fence", "proxy"]:
        yield from _proxy_fences(tokens)
        return
    if tokens[:2] == ["fence", "mbarrier_init"]:
        yield ["fence", "acq_rel", "cta"], ".mbarrier_init.release.cluster -> .acq_rel.cta"
        return
    if tokens[0] in _SCOPED:
        yield from _scopes(tokens)
    for order, by in _LAXER.items():
        for weaker in by.get(tokens[0], ()) if order in tokens else ():
            yield [weaker if word == order else word for word in tokens], f".{order} -> .{weaker}"
    strong = [word for word in _PLAIN.get(tokens[0], ()) if word in tokens]
    if strong:
        gone = {*strong, "gpu", "sys", "cluster", "cta"}
        yield [word for word in tokens if word not in gone], f".{strong[0]} removed"
    yield from _implied_orders(tokens)
    if tokens[:3] == ["cp", "async", "bulk"] and "wait_group" in tokens and "read" not in tokens:
        yield [*tokens, "read"], ".wait_group -> .wait_group.read"


def _proxy_fences(tokens: list[str]) -> Iterator[tuple[list[str], str]]:
    if "async" not in tokens:
        return
    space = next((word for word in tokens if word in _SPACES), "")
    if space:
        other = _SPACES[space]
        yield [other if word == space else word for word in tokens], f".{space} -> .{other}"
    else:
        for only in ("global", "shared::cta"):
            yield [*tokens, only], f"all spaces -> .{only}"
    yield ["fence", "acq_rel", "gpu"], "proxy fence -> fence.acq_rel.gpu"


def _scopes(tokens: list[str]) -> Iterator[tuple[list[str], str]]:
    scope = next((word for word in tokens[1:] if word in _NARROWER), "")
    for narrower in _NARROWER.get(scope, ()):
        yield [narrower if word == scope else word for word in tokens], f".{scope} -> .{narrower}"
    if scope or tokens[0] not in ("atom", "red"):
        return
    order = next((word for word in tokens if word in _ORDERED), "")
    if order:  # the scope is the GPU where none is named
        for narrower in ("cluster", "cta"):
            at = tokens.index(order) + 1
            yield [*tokens[:at], narrower, *tokens[at:]], f".gpu by default -> .{narrower}"


def _implied_orders(tokens: list[str]) -> Iterator[tuple[list[str], str]]:
    """Of barriers, which release and acquire where they do not say."""
    named = {*tokens} & {"relaxed", "release", "acquire"}
    if tokens[0] == "mbarrier" and tokens[1] in ("arrive", "arrive_drop") and not named:
        at = 3 if tokens[2:3] in (["expect_tx"], ["noComplete"]) else 2
        head, tail = tokens[:at], tokens[at:]
        yield [*head, "relaxed", "cluster", *tail], "release by default -> .relaxed"
        if "shared::cluster" in tokens:
            yield [*head, "release", "cta", *tail], "arrival in another CTA -> .release.cta"
    if tokens[0] == "mbarrier" and tokens[1] in ("try_wait", "test_wait") and not named:
        at = 3 if tokens[2:3] == ["parity"] else 2
        yield [*tokens[:at], "relaxed", "cluster", *tokens[at:]], "acquire by default -> .relaxed"
    if tokens[:3] == ["barrier", "cluster", "arrive"] and not named:
        yield [*tokens[:3], "relaxed", *tokens[3:]], "release by default -> .relaxed"


def _halved_barriers(kernel: Kernel, one: Statement) -> Iterator[Mutant]:
    """A barrier that is arrived at, but not waited for."""
    words = {("bar", "sync"), ("barrier", "sync")}
    if one.tokens[:2] in words or one.tokens[:3] == ("barrier", "cta", "sync"):
        operands = one.operands
        if len(operands) == 1:
            operands = [operands[0], str(kernel.source.threads[one.entry])]
        if operands[1] == "0":
            return
        head = one.head.replace(".sync", ".arrive", 1)
        yield kernel.mutant(WEAKENED, ".sync -> .arrive", one, f"\t{one.spelled(operands, head)}")
