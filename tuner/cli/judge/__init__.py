"""Commands that judge one kernel or the machine."""
