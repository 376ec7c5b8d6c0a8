"""What the container's description tells a reader's machine to run."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_container_is_set_up_by_a_target_of_make_on_a_python_that_ci_tries() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    program, target = container["postCreateCommand"].split()
    assert program == "make" and re.search(rf"^{target}:", MAKEFILE, re.M)
    python = container["image"].rpartition(":")[2]
    assert f'"{python}"' in (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
