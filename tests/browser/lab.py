"""JupyterLab as `rankwise lab` starts it, in a course and a home of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..processes import wait_until

COMMAND = (sys.executable, "-c", "import sys; from rankwise.cli import main; sys.exit(main())", "lab")
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ip=127.0.0.1",
    "--port=0",
    "--IdentityProvider.token=",
    "--KernelManager.transport=ipc",  # a port that was chosen before a kernel starts may be taken when it has
    "--LabApp.expose_app_in_browser=True",  # tests ask it which cell is active, and what its kernel does
)
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false"},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},  # cells out of view are measured, too
}


@contextlib.contextmanager
def served(course: Path, home: Path, patience: float) -> Iterator[str]:
    """The address of a JupyterLab that serves a course, for as long as it is wanted.

    Args:
        home: an empty folder for all that it keeps.
        patience: how much longer than on a quiet machine it may take.
    """
    for name, value in SETTINGS.items():
        file = home / "config" / "lab" / "user-settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(value))
    places = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    places |= {"HOME": str(home), "IPYTHONDIR": str(home / "ipython"), "PYTHONPATH": str(course)}
    with (home / "log").open("w") as log:
        server = subprocess.Popen([*COMMAND, *OPTIONS], cwd=course, env=os.environ | places, stdout=log, stderr=log)
    said = home / "runtime" / f"jpserver-{server.pid}.json"
    try:
        wait_until(
            lambda: server.poll() is not None or (said.exists() and said.read_text().rstrip().endswith("}")),
            60 * patience,
        )
        assert server.poll() is None, (home / "log").read_text()
        yield json.loads(said.read_text())["url"].rstrip("/")
    finally:
        server.terminate()
        try:
            server.wait(30)  # its kernels end first, and their ranks
        finally:
            server.kill()
            server.wait()
