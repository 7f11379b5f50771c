"""The layer in one launch for a middle number of rows: wgmma, K split over a cluster, the low-rank branch beside it."""
