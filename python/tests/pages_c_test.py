"""The C programs in the pages of docs/ compile and run as they stand there.

This needs no torch."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from support import BUILD, ROOT

LIBRARY = BUILD / "lib"


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        page = (ROOT / "docs" / "coming-from.md").read_text()
        self.programs = dict(
            (name, body) for body, name in
            re.findall(r"^```c\n(/\* (\w+\.c): .*?)^```$", page, re.MULTILINE | re.DOTALL))
        for name, body in self.programs.items():
            (self.folder / name).write_text(body)

    def output(self, *command):
        ended = subprocess.run(command, cwd=self.folder, capture_output=True, text=True,
                               timeout=60, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    def ours(self, name):
        """Return what a program prints on two workers."""
        program = self.folder / name
        self.output("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"{name}.c", "-o", name,
                    f"-I{ROOT / 'include'}", f"-L{LIBRARY}", "-llockstep", f"-Wl,-rpath,{LIBRARY}")
        return self.output(BUILD / "bin" / "lockstep", "run", "-n", "2", "--no-prefix", program)

    def test_a_sum_over_ranks(self):
        self.assertEqual(self.ours("ours"), "mean 0.75\n")

    def test_pushes_to_a_shared_vector(self):
        self.assertEqual(self.ours("push"), "key 3 has 100\n")

    @unittest.skipUnless(shutil.which("mpicc"), "there is no mpicc")
    def test_the_program_with_mpi_compiles(self):
        self.output("mpicc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "theirs.c")


if __name__ == "__main__":
    unittest.main()
