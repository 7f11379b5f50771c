"""The kernel ``wide``: tiles of many rows, wgmma with weights from registers."""
