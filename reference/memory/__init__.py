"""What a training run keeps in memory, as formulas and as measured, and the ways to keep less."""
