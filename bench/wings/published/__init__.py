"""Numbers that papers printed, shown beside ours and never ranked with them."""
