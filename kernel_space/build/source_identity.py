"""What of a Python file decides what it does: its code. Where it lies, whom it imports and what it says do not.

Hashes over sources tell whether a result still stands for today's code. Files are moved, imports sorted and comments
mended far more often than kernels change, and none of that may make a result stale.
"""

from __future__ import annotations

import ast
import io
import threading
import tokenize
from collections.abc import Iterator

_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


_ONE_AT_A_TIME = threading.Lock()


def parsed(source: bytes) -> ast.Module:
    """``ast.parse``, of which Python 3.11 allows one at a time: two threads get a ``SystemError`` (its depth is counted
    for both together). Raises ``SyntaxError``."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)


def code_only(source: bytes) -> bytes:
    """``source`` without import statements, docstrings, comments, blank lines and space at line ends.

    Lines are kept as they are written, as printing a syntax tree gives another text from one Python to the next. Raises
    ``SyntaxError`` for what is no Python.
    """
    lines = source.splitlines()
    for node in _left_out(parsed(source)):
        _cut(lines, node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)
    for token in tokenize.generate_tokens(io.StringIO(source.decode()).readline):
        if token.type == tokenize.COMMENT:
            kept = lines[token.start[0] - 1]
            lines[token.start[0] - 1] = kept.removesuffix(token.string.encode())
    stripped = (line.rstrip() for line in lines)
    return b"\n".join(line for line in stripped if line)


def _left_out(tree: ast.Module) -> Iterator[ast.stmt]:
    """Imports and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def _cut(lines: list[bytes], first: int, start: int, last: int, end: int) -> None:
    """Blank from column ``start`` of line ``first`` to column ``end`` of line ``last``; what is beside it stays put."""
    after = lines[last - 1][end:]
    for number in range(first, last + 1):
        begin = start if number == first else 0
        lines[number - 1] = lines[number - 1][:begin]
    padding = end - start if first == last else end
    lines[last - 1] += b" " * padding + after
