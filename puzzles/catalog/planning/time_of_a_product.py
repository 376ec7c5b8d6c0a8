"""planning.time_of_a_product: a roofline, and the tiles that a product does not fill."""

import itertools

from puzzles.grading.puzzle import Budget, Measure, Puzzle, Scale, Wrong, cases, drawn
from reference.planning.answers.roofline import product_seconds


def tile_after_tile(case, inputs):
    """Tiles are dealt to processors in turn, and each computes its own one after another."""
    processor, busy = itertools.cycle(range(case.processors)), [0.0] * case.processors
    each = case.tile_rows * case.tile_columns * case.inner * 2 / (case.peak / case.processors)
    for _row in range(0, case.rows, case.tile_rows):
        for _column in range(0, case.columns, case.tile_columns):
            busy[next(processor)] += each
    numbers = case.rows * case.inner + case.inner * case.columns + case.rows * case.columns
    return [max(max(busy), numbers * case.size / case.bandwidth)]


def waves_counted(case, inputs):
    """The same, where there are too many tiles."""
    rows, columns = (
        (size + tile - 1) // tile for size, tile in ((case.rows, case.tile_rows), (case.columns, case.tile_columns))
    )
    most = (rows * columns + case.processors - 1) // case.processors  # tiles of the first processor
    computing = most * (2 * case.tile_rows * case.tile_columns * case.inner) / (case.peak / case.processors)
    return [
        max(computing, (case.rows * case.inner + case.columns * (case.inner + case.rows)) * case.size / case.bandwidth)
    ]


GPU = {"size": (2,), "peak": (989e12,), "bandwidth": (3.35e12,)}  # H100 SXM, data sheet; 132 processors
H100 = {**GPU, "processors": (132,), "tile_rows": (128,), "tile_columns": (256,)}
A100 = {"size": (2,), "peak": (312e12,), "bandwidth": (2.0e12,), "processors": (108,)}

PUZZLE = Puzzle(
    name="planning.time_of_a_product",
    title="Time of a product, by its shape",
    statement="""
        How long does a GPU take for the product [rows, inner] x [inner, columns]? Two things happen at once, and the
        slower one decides.

        moving      the two matrices are read from memory and the result is written, each number once.
        computing   the result is cut into tiles of `tile_rows` x `tile_columns`. Each of the GPU's processors computes
                    one tile at a time, and needs 2 · tile_rows · tile_columns · inner FLOPs for it; all together reach
                    `peak`, so one reaches its part. A tile that the matrix does not fill takes as long as a full one.
                    Tiles are computed in waves: a processor without a tile waits for the end of the last wave.

            [100, 1000] x [1000, 100], tiles of 64 x 64, 3 processors
            2 x 2 tiles, so 2 waves: the time of 6 tiles,
            for a result that is as large as 2.4

        Args:
            rows, inner, columns: of the two matrices.
            size: bytes of a number.
            peak: FLOP per second of all processors together.
            bandwidth: bytes per second from and to memory.
            processors: how many there are.
            tile_rows, tile_columns: of a tile.

        Returns: seconds.

        Budget: a formula, not a loop over tiles.
        """,
    function=product_seconds,
    cases=cases(worlds=(1,), rows=(4096,), inner=(4096,), columns=(4096,), **H100)
    + cases(worlds=(1,), rows=(1, 16, 300), inner=(8192,), columns=(28_672,), **H100)
    + cases(worlds=(1,), rows=(16,), inner=(8192,), columns=(28_672,), **H100 | {"size": (1,)})
    + cases(worlds=(1,), rows=(1536, 1537), inner=(8192,), columns=(2816,), **H100)
    + cases(worlds=(1,), rows=(8192,), inner=(4096,), columns=(50_257, 50_432), **H100)
    + cases(worlds=(1,), rows=(2048,), inner=(64,), columns=(2048,), **A100, tile_rows=(256,), tile_columns=(128,))
    + cases(worlds=(1,), rows=(384,), inner=(4096,), columns=(640,), **A100, tile_rows=(64, 256), tile_columns=(64,))
    + cases(
        worlds=(1,),
        rows=(100,),
        inner=(1000,),
        columns=(100,),
        size=(4,),
        peak=(1e12,),
        bandwidth=(1e12,),
        processors=(3,),
        tile_rows=(64,),
        tile_columns=(64,),
    ),
    drawn=tuple(
        drawn(
            worlds=(1,),
            rows=heights,
            inner=(64, 1000, 5120),
            columns=range(100, 9000, 37),
            size=(1, 2, 4),
            peak=(312e12, 989e12),
            bandwidth=(1.1e12, 3.35e12),
            processors=(7, 108, 132),
            tile_rows=(64, 128, 256),
            tile_columns=(64, 128, 256),
        )
        for heights in (range(1, 200), range(1000, 9000, 41))
    ),
    scale=Scale(
        cases(worlds=(1,), rows=(10**9 + 1, 3), inner=(4096,), columns=(10**8 + 1,), **H100),
        "the number of tiles",
        oracle=waves_counted,
    ),
    oracle=tile_after_tile,
    tolerance=1e-9,
    budgets=(
        Budget(
            Measure.LINES,
            target=lambda case: 25,
            optimum=lambda case: 2,
            why="all tiles take equally long: count them, then the waves, and multiply",
        ),
    ),
    hints=(
        "How many tiles cover the rows, if the last one may stand over? And the columns? How many waves are that?",
        "Round up twice: -(-m // tile_rows) · -(-n // tile_columns) tiles, and -(-tiles // processors) waves. A wave "
        "takes what one tile takes on one processor, which has peak / processors.",
        "computing = waves · 2 · tile_rows · tile_columns · inner · processors / peak; moving = size · (rows · inner + "
        "inner · columns + rows · columns) / bandwidth. The product takes the larger of them.",
    ),
    wrong=(
        Wrong(
            "FLOPs over the peak",
            diagnosis=r"rows=4096, inner=4096.*expected 0\.00014\d+, got 0\.000138\d+",
            body="return 2 * rows * inner * columns / peak",
        ),
        Wrong(
            "a roofline without tiles",
            diagnosis=r"rows=4096, inner=4096.*expected 0\.00014\d+, got 0\.000138\d+",
            body="""
                moved = size * (rows * inner + inner * columns + rows * columns) / bandwidth
                return max(2 * rows * inner * columns / peak, moved)
                """,
        ),
        Wrong(
            "memory is always fast enough",
            diagnosis=r"rows=1, inner=8192.*expected [\d.e-]+, got [\d.e-]+",
            edits=(("max(waves * wave, moved)", "waves * wave"),),
        ),
        Wrong(
            "first moved, then computed",
            diagnosis=r"rows=4096, inner=4096.*expected [\d.e-]+, got [\d.e-]+",
            edits=(("max(waves * wave, moved)", "waves * wave + moved"),),
        ),
        Wrong(
            "a wave that is not full takes a part of the time",
            diagnosis=r"rows=4096, inner=4096.*expected [\d.e-]+, got [\d.e-]+",
            edits=(("-(-tiles // processors)", "tiles / processors"),),
        ),
        Wrong(
            "the last wave has no time",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(("-(-tiles // processors)", "tiles // processors"),),
        ),
        Wrong(
            "tiles by the area of the result",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(
                (
                    "-(-rows // tile_rows) * -(-columns // tile_columns)",
                    "-(-rows * columns // (tile_rows * tile_columns))",
                ),
            ),
        ),
        Wrong(
            "rows of a tile are columns of the result",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(
                (
                    "-(-rows // tile_rows) * -(-columns // tile_columns)",
                    "-(-rows // tile_columns) * -(-columns // tile_rows)",
                ),
            ),
        ),
        Wrong(
            "one processor has the whole peak",
            diagnosis=r"rows=4096, inner=4096.*expected [\d.e-]+, got [\d.e-]+",
            edits=(("* inner * processors / peak", "* inner / peak"),),
        ),
        Wrong(
            "a multiplication and an addition are one",
            diagnosis=r"rows=4096, inner=4096.*expected [\d.e-]+, got [\d.e-]+",
            edits=(("wave = 2 * tile_rows", "wave = tile_rows"),),
        ),
        Wrong(
            "the weights alone are moved",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(("(rows * inner + inner * columns + rows * columns)", "inner * columns"),),
        ),
        Wrong(
            "two bytes, whatever a number has",
            diagnosis=r"size=\d.*expected [\d.e-]+, got [\d.e-]+",
            edits=(("moved = size *", "moved = 2 *"),),
        ),
        Wrong(
            "the processors of an H100, whatever the GPU is",
            diagnosis=r"expected [\d.e-]+, got [\d.e-]+",
            edits=(("    tiles = -(-rows", "    processors = 132\n    tiles = -(-rows"),),
        ),
        Wrong(
            "tile after tile",
            diagnosis=r"right, but it runs [\d,]+ lines where 25 must do.*\n.*count them, then the waves",
            body="""
                waves, free = 0, 0
                for row in range(0, rows, tile_rows):
                    for column in range(0, columns, tile_columns):
                        if free == 0:
                            waves, free = waves + 1, processors
                        free -= 1
                computing = waves * 2 * tile_rows * tile_columns * inner * processors / peak
                return max(computing, size * (rows * inner + inner * columns + rows * columns) / bandwidth)
                """,
        ),
    ),
)
