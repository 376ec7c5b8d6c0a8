"""`reference.train`, whose losses go to the file named first, all digits of them: what tests start under torchrun."""

import sys
from pathlib import Path

from reference import launch
from reference.report import logger

if __name__ == "__main__":
    log = Path(sys.argv.pop(1))
    launch.printer = lambda steps, every: logger(log)
    sys.exit(launch.main())
