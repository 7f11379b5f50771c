"""How many candidates may be under way: results that the sampler may lag behind. Needs no sampler itself.

Fixed, so that the sequence of candidates is the same for any number of jobs.
"""

from __future__ import annotations

WINDOW = 16
CARD_WINDOW = 32  # on a card, which judges faster than 16 cores compile: no core may wait for a value
