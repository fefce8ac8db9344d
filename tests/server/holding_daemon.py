"""A real daemon whose uploads to a directory can be held up: `python holding_daemon.py HOLD FLAGS…`.

While there is a file HOLD, no file of torch's gets its name at the destination. Nothing of the daemon is changed:
Python says of each renaming that it is about to happen, on the thread that is about to do it.
"""

import re
import sys
import time
from pathlib import Path
from typing import Any

_DATA = re.compile(r"__\d+_\d+\.distcp")


def main() -> int:
    from forebay_server.__main__ import main as serve

    held = Path(sys.argv[1])

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and _DATA.fullmatch(str(arguments[1])):
            while held.exists():
                time.sleep(0.01)

    sys.addaudithook(hook)
    return serve(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
