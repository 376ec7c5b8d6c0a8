"""Answers to the puzzles of this chapter, one idea a file. No engine imports them."""
