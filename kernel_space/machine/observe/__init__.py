"""What an onlooker sees of a run: findings in words, timelines."""
