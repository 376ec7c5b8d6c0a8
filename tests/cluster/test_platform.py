"""What the cluster says where something is missing, and what it does not need."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reference.cluster import Cluster, ClusterError, forkserver


def python(source: str) -> str:
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "error", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{source}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs here")
def test_cuda_without_gpus_is_one_clear_line():
    with pytest.raises(ClusterError, match="2 ranks need 2 GPUs, here are 0"):
        Cluster(2, device="cuda")


def test_a_device_that_does_not_exist_is_refused():
    with pytest.raises(ClusterError, match='"cpu" or "cuda", not \'tpu\''):
        Cluster(2, device="tpu")


def test_an_owner_need_not_import_torch():
    print_both = "import reference.cluster; print('torch' in sys.modules, 'numpy' in sys.modules)"
    assert python(print_both).split() == ["False", "False"]


def test_on_windows_it_says_what_to_use():
    out = python("""
import os, select, signal, socket, subprocess, threading, inspect, cloudpickle, tempfile, multiprocessing
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGCHLD"): delattr(signal, name)
for name in ("fork", "waitpid", "memfd_create"): delattr(os, name)
del select.poll, socket.send_fds
from reference.cluster import Cluster, ClusterError, forkserver
os.name = "nt"
try: Cluster(2)
except ClusterError as error: print(error)
""")
    assert "use WSL" in out


def test_without_what_linux_alone_has_it_works():
    """macOS: no signal on the parent's death, no /proc, no nameless file, no batch scheduling."""
    out = python("""
import os, tempfile
from reference.cluster import Cluster, RankError, forkserver
forkserver._BOOT = forkserver._BOOT.replace("import sys", '''
import os, sys
for name in ("pidfd_open", "memfd_create", "sched_setscheduler", "SCHED_BATCH", "waitid"): delattr(os, name)
import reference.cluster.server as server
server.LINUX = False
server._LOOK = 100
listdir = os.listdir
server.children = lambda pid: []
''')
files = set(os.listdir(tempfile.gettempdir()))
with Cluster(2) as cluster:
    print(cluster.run(os.getppid)[0] == forkserver.shared().pid)
    try: cluster.run(os._exit, 3)
    except RankError as error: print(error.kind)
    print(cluster.run(abs, -1))
print({name for name in set(os.listdir(tempfile.gettempdir())) - files if "rankwise" in name})
""")
    assert out.splitlines() == ["True", "os._exit", "[1, 1]", "set()"]


def test_a_server_that_cannot_start_says_why():
    out = python("""
from reference.cluster import Cluster, ClusterError, forkserver
forkserver._BOOT = "raise SystemExit('there is no torch')"
try:
    with Cluster(2) as cluster: cluster.run(int)
except ClusterError as error: print(error)
""")
    assert out.strip() == "the ranks did not start: the process that forks the ranks is gone: there is no torch"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_server_has_one_thread_so_that_a_fork_is_safe(clusters):
    clusters(2).run(abs, -1)
    status = Path(f"/proc/{forkserver.shared().pid}/status").read_text()
    assert "Threads:\t1\n" in status


def test_no_more_processes_is_one_clear_line():
    out = python("""
from reference.cluster import Cluster, ClusterError, forkserver
forkserver._BOOT = forkserver._BOOT.replace("import sys", '''
import os, sys
fork, children = os.fork, []
def limited():
    if len(children) == 3: raise BlockingIOError(11, "no more processes")
    children.append(0)
    return fork()
os.fork = limited
''')
try:
    with Cluster(8) as cluster: cluster.run(int)
except ClusterError as error: print(error)
""")
    assert out.strip() == "the ranks did not start: [Errno 11] no more processes"


def test_ranks_on_gpus_are_not_watched(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ClusterError, match="can be watched"):
        Cluster(2, watch=True, device="cuda")
