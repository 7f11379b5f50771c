"""One tune on several hosts by dask.distributed. Only what is named ``--cluster`` or ``worker`` imports the engine.

Modules load next to nothing when they are imported: a host with a card alone has neither compiler nor search.
"""
