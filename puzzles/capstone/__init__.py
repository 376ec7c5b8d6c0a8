"""The capstone: the course's training on a learner's own solutions.

Each puzzle whose function has a place in the engine can take it: a *seat*. What is not solved is the reference's.

    texts.py        a learner's functions: the texts that have passed, or those of a folder, to run on ranks
    seats.py        the table: which puzzle takes which place, and the adapter from its signature to the engine's
    parts.py        what adapters fill, and the training that is put together from it
    said.py         adapters of what ranks say to each other: collectives as a communicator
    layers.py       adapters of what layers compute: matrices, vocabulary, attention, experts
    steps.py        adapters of what surrounds a step: who reads what, sums of gradients, norms, the optimizer, orders
    engines.py      the engines of the card: a model, and a plan with axes that bring the seats to use
    controls.py     what must hold of any right training, each with the number that it found
    card.py         the report: whose code runs, what holds, who is to blame, what it costs
    scale.py        the step of 64 H100s, from replayed messages and a simulated pipeline
    told.py         the card and the records in words
    challenges.py   open challenges, each with a bound that is known, and the records of a folder
"""
