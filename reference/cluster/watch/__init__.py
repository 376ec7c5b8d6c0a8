"""Watching: every call of every rank is reported before it is made, and a supervisor pairs them.

On a rank, a `Watcher` (a recorder that also reports) checks what one rank can know: peers, buffers, requests, numbers.
In the owner, the `Supervisor` checks what only all ranks together show: calls that do not fit, and waits in a circle.

| on a rank       | what it sees                                                                              |
|-----------------|-------------------------------------------------------------------------------------------|
| `watcher`       | every call, wait and end: what is told to the supervisor                                  |
| `checks`        | a call before it is made: peer, tensors, numbers, thread                                  |
| `flights`, `buffers`, `raw` | memory in flight, and each touch of it                                        |
| `gradients`, `replicas`, `uses`, `swallowed`, `patches` | what no call shows: lost gradients, drift, looks, errors   |
| `order`, `synchronize`, `polling` | which thread knows of which other one's calls                           |
| `torch_futures`, `idle_threads`   | waits out of the tap's sight, and threads that wait for other threads   |

| in the owner    | what it concludes                                                                         |
|-----------------|-------------------------------------------------------------------------------------------|
| `supervisor`    | the verdict, from what has come in                                                        |
| `posted_calls`, `matching`, `races`, `drift` | calls, which belong together, which might have met otherwise |
| `grace_period`  | how long ranks that still run are waited for                                              |
"""
