"""What a pipeline's schedule costs, in closed form: how long a rank waits in a step, and how much it holds.

F, I, W are the times of all layers of a rank for one micro-batch: forward, and backward for inputs and for weights.
B is I + W. The bubble is the time for which the busiest rank waits in a step, of ranks that do not wait for each other
between steps (`Simulation.longest`); stages cost alike, and messages nothing.

| schedule         | bubble                             | micro-batches that the fullest rank holds | from m = |
|------------------|------------------------------------|-------------------------------------------|----------|
| GPipe            | (p-1) (F+B)                        | m                                         | 1        |
| 1F1B             | (p-1) (F+B)                        | p                                         | 1        |
| interleaved      | (p-1) (F+B) / v, p divides m       | p + (p-1) / v                             | 1        |
| interleaved-even | (p-1) (F+B) / v                    | g + (2p-1-g) / v, g = ceil(m / floor m/p) | 1        |
| breadth-first    | (p-1) (F+B) / v                    | m                                         | 1        |
| ZB-H1            | (p-1) (F+I-W)                      | p                                         | 1        |
| ZB-H2            | (p-1) (F+I-2W)                     | 2p - 1                                    | 1        |
| ZB-V             | 0                                  | p                                         | 1        |
| DualPipeV        | (p-1) / 2                          | p + 1/2                                   | 1        |
| 1F1B-V           | (5p - 5, 7 or 8) / 2               | floor(2p / 3) + 1                         | p        |
| V-Half           | 3 ceil(p/2) - 7/2                  | floor(p / 2) + 1                          | 3p / 2   |
| V-Min            | (4p - 5, 6 or 7) / 2               | floor((p+1) / 3) + 1                      | 3p / 2   |

With fewer micro-batches than fill the pipeline ranks wait longer: the code has those terms. The last five are counted
in units of F = I = W; where these differ, V-Half and V-Min may wait in every micro-batch, so ask `simulated`. Of
interleaved micro-batches that p does not divide, the last group waits as if it were full: a bound from below, by up to
F too low. Of 1F1B-V with three ranks, six, and so on, the bubble is F / 2 too high or too low.

The schedules and their papers: `pipeline_parallel.orders`, `zero_bubble.orders`, `zero_bubble.building_blocks`.
"""

import numpy as np

from reference.plan import PipelineSchedule

from .layouts import Column, Layouts


def bubble(layouts: Layouts, m: Column, forward: Column, input: Column, weight: Column) -> Column:
    """How long a rank of each layout waits in a step, in the unit of the times.

    Args:
        layouts: with p, v and the schedule.
        m: micro-batches.
        forward, input, weight: of all layers of a rank, for one of them.
    """
    p, v, whole = layouts.pp, layouts.chunks, forward + input + weight
    third = whole / 3
    missing = np.maximum(0.0, p - m)  # micro-batches, until each rank has one
    match layouts.schedule:
        case PipelineSchedule.INTERLEAVED:
            last = np.where(m > p, -m % p, 0.0)  # missing in the last group
            return ((p - 1 + missing * (v - 1)) * whole + last * (v - 1) * (input + weight)) / v
        case PipelineSchedule.INTERLEAVED_EVEN | PipelineSchedule.BREADTH_FIRST:
            return (p - 1 + missing * (v - 1)) * whole / v
        case PipelineSchedule.ZB_H1:
            return (p - 1) * np.maximum(0.0, forward + input - weight) + missing * weight
        case PipelineSchedule.ZB_H2:
            short = np.maximum(0.0, 2 * p - 1 - m)
            return (p - 1) * np.maximum(0.0, forward + input - 2 * weight) + short * weight
        case PipelineSchedule.ZB_V:
            return np.maximum(0.0, 2 * p - 1 - m) * third
        case PipelineSchedule.DUAL_PIPE_V:
            return ((p - 1) / 2 + np.clip(2 * p - m, 0.0, p - 1) + missing) * third
        case PipelineSchedule.ONE_F_ONE_B_V:
            steady = 5 * p - np.choose(_third(p), (8, 5, 7))
            return np.maximum(steady, 6 * (p - 1) - 2 * (m - 1)) / 2 * third
        case PipelineSchedule.V_HALF:
            return np.maximum(0.0, 3 * np.ceil(p / 2) - 3.5) * third
        case PipelineSchedule.V_MIN:
            return (4 * p - np.choose(_third(p), (7, 5, 6))) / 2 * third
    return (p - 1) * whole


def in_flight(layouts: Layouts, m: Column) -> Column:
    """How many micro-batches, of all its layers, the fullest rank of each layout holds at most.

    Args:
        layouts: with p, v and the schedule.
        m: micro-batches.
    """
    p, v = layouts.pp, layouts.chunks
    match layouts.schedule:
        case PipelineSchedule.GPIPE | PipelineSchedule.BREADTH_FIRST:
            most = m
        case PipelineSchedule.INTERLEAVED:
            most = p + np.clip(m - p, 0, p - 1) / v
        case PipelineSchedule.INTERLEAVED_EVEN:
            group = np.ceil(m / np.maximum(1, m // p))
            most = group + (2 * p - 1 - group) / v
        case PipelineSchedule.ZB_H2:
            most = 2 * p - 1
        case PipelineSchedule.ONE_F_ONE_B_V:
            most = 2 * p // 3 + 1
        case PipelineSchedule.V_HALF:
            most = p // 2 + 1
        case PipelineSchedule.V_MIN:
            most = (p + 1) // 3 + 1
        case PipelineSchedule.DUAL_PIPE_V:
            most = p + 0.5
        case _:
            most = p
    return np.minimum(most, m)


def _third(p: Column) -> Column:
    return np.asarray(p % 3, dtype=int)
