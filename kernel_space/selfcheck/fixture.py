"""Bytes captured on a card, kept as a file: what the machine must reproduce where there is no card."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.selfcheck.driver import CardInfo
from kernel_space.selfcheck.text.probe import Ending, Probe, Result

FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captured:
    """``digests``: identity of each probe when it was captured; ``date``: YYYY-MM-DD."""

    card: CardInfo
    date: str
    results: dict[str, Result]
    digests: dict[str, str]

    def result(self, probe: Probe) -> Result | None:
        """The captured result; None if there is none. Raises ``InputError`` if the probe has changed since."""
        if probe.name not in self.results:
            return None
        if self.digests[probe.name] != probe.digest:
            raise InputError(
                f"probe {probe.name} has changed since its bytes were captured; capture again on a card of that kind"
            )
        return self.results[probe.name]


def save(
    path: Path, card: CardInfo, date: str, probes: tuple[Probe, ...], results: dict[str, Result]
) -> None:
    """One line per probe, so that a new capture is a readable diff."""
    head = json.dumps({"format": FORMAT, "card": dataclasses.asdict(card), "date": date})
    lines = [_line(probe, results[probe.name]) for probe in probes if probe.name in results]
    path.write_text(head[:-1] + ', "probes": [\n' + ",\n".join(lines) + "\n]}\n")


def _line(probe: Probe, result: Result) -> str:
    record = {
        "name": probe.name,
        "digest": probe.digest,
        "ending": result.ending,
        "detail": result.detail,
        "data": _pack(result.data),
        "descriptors": [_pack(item) for item in result.descriptors],
    }
    return json.dumps({key: value for key, value in record.items() if value})


def load(path: Path) -> Captured:
    """Raises ``InputError`` for a file that is missing or of another format."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the capture {path}: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path} is not a capture of format {FORMAT}")
    records = document["probes"]
    return Captured(
        card=CardInfo(**document["card"]),
        date=document["date"],
        results={record["name"]: _result(record) for record in records},
        digests={record["name"]: record["digest"] for record in records},
    )


def _result(record: dict) -> Result:
    return Result(
        ending=Ending(record["ending"]),
        data=_unpack(record.get("data", "")),
        detail=record.get("detail", ""),
        descriptors=tuple(_unpack(item) for item in record.get("descriptors", ())),
    )


def _pack(data: bytes) -> str:
    return base64.b85encode(zlib.compress(data, 9)).decode() if data else ""


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text)) if text else b""
