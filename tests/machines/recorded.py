"""`reference.train`, whose losses go to the file named first, all digits of them: what tests start under torchrun.

Where DIES_AFTER names a step, rank 1 kills itself after it, unless torchrun has started it anew.
"""

import os
import signal
import sys
from pathlib import Path

from reference import launch
from reference.report import StepReport, logger


def dying(step: StepReport) -> None:
    """A report for rank 1."""
    if step.step == int(os.environ["DIES_AFTER"]):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    log = Path(sys.argv.pop(1))
    launch.printer = lambda steps, every: logger(log)
    if "DIES_AFTER" in os.environ and os.environ["RANK"] == "1" and not launch.restarts():
        launch.silent = dying
    sys.exit(launch.main())
