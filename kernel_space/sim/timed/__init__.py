"""The PTX machine with a clock: how long one launch takes. See docs/timing.md.

A kernel is reduced to what decides its control flow, its barriers and its engines (``reduce.py``); data are never
touched. The reduced program runs once, and every time in it is a vector with one entry per set of machine
constants, so an estimate for the whole set costs little more than one for a single set.
"""
