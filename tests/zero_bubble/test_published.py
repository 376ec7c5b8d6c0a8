"""What is quoted of the zero-bubble paper is what was read from it."""

import csv
from pathlib import Path

from reference.zero_bubble.published import settings

ROWS = list(csv.DictReader((Path(__file__).parent / "zero_bubble_tables.csv").open()))


def test_the_quoted_table_is_the_papers() -> None:
    quoted = {
        (each.model, each.stages, each.micro_batches, order): (
            each.costs.forward, each.costs.input, each.costs.weight, each.costs.message, rate,
        )
        for each in settings()
        for order, rate in each.bubble_rates.items()
    }  # fmt: skip
    read = {
        (row["model"], int(row["stages"]), int(row["micro_batches"]), row["schedule"]): tuple(
            float(row[name])
            for name in (
                "t_forward_ms",
                "t_backward_input_ms",
                "t_backward_weight_ms",
                "t_comm_ms",
                "bubble_rate_computed",
            )
        )
        for row in ROWS
    }
    assert quoted == read
