"""`python -m rankscope`: the command that the package installs."""

import os
import sys
import sysconfig


def main() -> None:
    """Becomes the command."""
    places = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable), os.path.expanduser("~/.local/bin")]
    for place in places:
        command = os.path.join(place, "rankscope")
        if os.access(command, os.X_OK):
            os.execv(command, ["rankscope", *sys.argv[1:]])
    sys.exit(f"rankscope: the command is in none of {', '.join(places)}")


main()
