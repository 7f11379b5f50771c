"""Which candidate comes next, and the stream of candidates to verdicts."""
