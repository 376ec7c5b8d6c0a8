"""A class: what learners hand in, graded.

Read in this order:

| file             | says                                                                                             |
|------------------|--------------------------------------------------------------------------------------------------|
| `submissions.py` | what lies in the folder: one text for each learner and puzzle, read and never run                |
| `assignment.py`  | what an instructor asks for: puzzles, points, weights, due date, what counts, a hidden seed      |
| `journal.py`     | every verdict as soon as it is there, in one SQLite file: what was graded is not graded again    |
| `worker.py`      | a process that grades, with a warm pool of ranks                                                 |
| `crew.py`        | as many workers as there are cores, none with more memory than its share                         |
| `marks.py`       | from verdicts to points                                                                          |
| `exports.py`     | CSV, JSON, JUnit, Gradescope, GitHub Classroom                                                   |
| `pages.py`       | a page for each learner, and one for the class                                                   |
| `similar.py`     | pairs of submissions that share more than chance allows, for a human to look at                  |
| `handout.py`     | what learners get for an assignment: stubs, and the checks without the answers                   |
| `stripped.py`    | a module's text without the functions that a handout must not show                               |
"""
