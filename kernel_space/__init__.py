"""What can be built, and whether it is right. Never imports ``tuner``."""
