"""The store is reached in time where names are not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reference.resilience import membership

ASK = """
import fcntl, socket, struct, time
with socket.socket() as it:
    fcntl.ioctl(it, 0x8914, struct.pack("16sh", b"lo", 1))  # up
deaf = socket.socket(type=socket.SOCK_DGRAM)
deaf.bind(("127.0.0.53", 53))

from reference.resilience.store import reach, serve
began = time.monotonic()
store = serve()
client = reach("127.0.0.1", store.port, 30.0)
client.set("key", "value")
client.get("key")
print(time.monotonic() - began)
try:
    print(len(deaf.recv(1000, socket.MSG_DONTWAIT)))
except BlockingIOError:
    print(0)
"""


@pytest.mark.alone
def test_a_name_server_that_does_not_answer_makes_nobody_seem_dead(tmp_path: Path) -> None:
    names = tmp_path / "resolv.conf"
    names.write_text("nameserver 127.0.0.53\n")
    mount = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
    begin = ["unshare", "-Urmn", "sh", "-c", mount, "sh", str(names)]
    if not shutil.which("unshare") or subprocess.run([*begin, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a name server of one's own takes namespaces of one's own (unshare -Urmn), not allowed here")
    done = subprocess.run([*begin, sys.executable, "-c", ASK], capture_output=True, text=True, timeout=100, check=True)
    seconds, asked = map(float, done.stdout.split())
    if not asked:
        pytest.skip("this system asks no name server when a store is reached, so none can keep it waiting")
    assert seconds < membership.LEASE
