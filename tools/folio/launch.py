"""launch.c in Python, for machines without a C compiler: Linux counts what this interpreter has resident, some 9 MiB,
into the peak of every program that it starts. Run by itself, with no module of this package.
"""

import json
import os
import sys
import time


def main() -> int:
    report, libraries, *command = sys.argv[1:]
    environment = dict(os.environ)
    environment.pop("LD_PRELOAD", None)
    if libraries != "-":
        environment["LD_PRELOAD"] = libraries
    begin = time.monotonic()
    try:
        child = os.posix_spawnp(command[0], command, environment)
    except OSError as error:
        print(f"launch: {command[0]}: {error.strerror}", file=sys.stderr)
        return 125
    _, status, usage = os.wait4(child, 0)
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    figures = {
        "wall": time.monotonic() - begin,
        "user": usage.ru_utime,
        "sys": usage.ru_stime,
        "max_rss_kib": usage.ru_maxrss,
        "minor_faults": usage.ru_minflt,
        "major_faults": usage.ru_majflt,
        "status": code,
    }
    with open(report, "w") as out:
        json.dump(figures, out)
    return code


sys.exit(main())
