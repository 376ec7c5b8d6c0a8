"""Pictures of what ranks say to each other and of what that costs: one module for each thing that is drawn.

Each has a function `draw` that takes data of a run, or formulas, and returns a `Picture`, which notebooks show.
"""
