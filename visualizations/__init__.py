"""Pictures of what ranks say to each other and of what that costs: one module for each thing that is drawn.

Its functions take data of a run, or formulas, and return a `Picture`, which notebooks show; the main one is `draw` in
most modules. `style` is what all pictures share. Explorers and players are pictures that move where there is a kernel.
"""
