"""The machine with a clock: how long one launch takes. See docs/timing.md."""
