"""``tune.py day-one``: the steps of a new card, each a process with a time limit, and what they leave to share."""
