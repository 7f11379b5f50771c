"""An operator for tests of search spaces: two kernels of different knobs for one architecture."""
