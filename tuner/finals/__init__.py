"""Who wins among the leaders of a measured tune."""
