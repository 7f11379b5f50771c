"""The kernel for few rows of act. See docs/kernel_small_m_sm90a.md."""
