"""``python -m lockstep`` runs the command ``lockstep`` that was installed with this package.

``python -m lockstep prepare`` is a command of the package itself.
"""

import os
import pathlib
import shutil
import sys
import sysconfig


def command():
    """Return the path of the command.  Raise ``FileNotFoundError`` if there is none."""
    package = pathlib.Path(__file__).resolve().parent
    folders = [
        package.parent.parent / "build" / "release" / "bin",  # a build of the sources
        package.parent / "bin",  # pip install --target
        pathlib.Path(sysconfig.get_path("scripts")),
        pathlib.Path(sysconfig.get_path("scripts", "posix_user")),  # pip install --user
    ]
    for folder in folders:
        found = shutil.which("lockstep", path=str(folder))
        if found:
            return found
    found = shutil.which("lockstep")
    if not found:
        raise FileNotFoundError("there is no command lockstep in "
                                + ", ".join(map(str, folders)) + " or on the PATH")
    return found


if __name__ == "__main__":
    path = command()
    if sys.argv[1:2] == ["prepare"]:
        from lockstep import prepare
        sys.exit(prepare.main(sys.argv[2:], path))
    os.execv(path, ["lockstep", *sys.argv[1:]])
