"""Small CuTe DSL kernels for the tests. Import them only after ``CUTE_DSL_ARCH`` is set."""
