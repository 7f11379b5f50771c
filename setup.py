"""What the wheel holds besides ``pyproject.toml``: the code, and the data that it finds beside itself in a checkout."""

from setuptools import find_packages, setup

DATA = "svdquant_tune_data"  # kernel_space/places.py looks for it
SHIPPED = {
    "search_spaces": ["*.yaml", "*/*.yaml"],
    "results": [
        "*/dispatch.json",
        "*/estimates.json",
        "*/device.json",
        "*/objects/index.json",
        "*/objects/*.o",
    ],
}

setup(
    packages=[
        *find_packages(include=["kernel_space*", "tuner*"]),
        *(f"{DATA}.{folder}" for folder in SHIPPED),
    ],
    package_dir={f"{DATA}.{folder}": folder for folder in SHIPPED},
    package_data={
        **{f"{DATA}.{folder}": patterns for folder, patterns in SHIPPED.items()},
        "tuner.simulated.constants": ["*.json", "*.json.gz"],
        "tuner.report": ["assets/*"],
    },
)
