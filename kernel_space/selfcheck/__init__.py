"""Small PTX programs that a card and the PTX machine both run: where their bytes differ, the machine is wrong.

``catalogue()`` lists the programs, ``Card`` runs them on the installed GPU, ``run_in_machine`` in the machine of
``kernel_space.machine``; ``compare`` judges. See docs/selfcheck.md.
"""
