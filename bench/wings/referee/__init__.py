"""Draw tasks that nobody could tune to, and say whether the places of a variant hold there."""
