"""What all operators and kernels share: architectures, configs, rules, budgets, NVFP4, errors."""
