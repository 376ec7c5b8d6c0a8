"""What this chapter does for speed alone. The same results come from the files above."""
