"""What the package takes from the library, its failures, and its command.

This needs no torch."""

import ctypes
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

import support  # finds the package

import lockstep
from lockstep import _library
from lockstep._layout import Layout

TEXT = """version 1.2.3
struct lk_thing 32
  count 0 4 uint
  name 8 8 pointer
  ratio 16 8 float
  on 24 1 bool
  version 28 4 uint
constant LK_LIMIT -7
"""


class Version(unittest.TestCase):
    def test_is_that_of_the_header(self):
        header = (support.ROOT / "include" / "lockstep" / "base.h").read_text()
        wanted = re.search(r'#define LK_VERSION "(.*)"', header)[1]
        self.assertEqual(lockstep.__version__, wanted)

    def test_is_that_of_the_command(self):
        said = subprocess.run([support.BUILD / "bin" / "lockstep", "version"], capture_output=True,
                              text=True, check=True)
        self.assertEqual(said.stdout.split(), ["lockstep", lockstep.__version__])


class Layouts(unittest.TestCase):
    def test_fields_are_at_the_offsets_of_the_text(self):
        layout = Layout(TEXT)
        self.assertEqual(layout.version, "1.2.3")   # not the field of that name
        thing = layout.struct("lk_thing", on=ctypes.c_bool, ratio=ctypes.c_double)
        self.assertEqual(ctypes.sizeof(thing), 32)
        self.assertEqual((thing.ratio.offset, thing.on.offset), (16, 24))
        self.assertEqual((layout.version, layout.constants), ("1.2.3", {"LK_LIMIT": -7}))

    def test_what_the_text_lacks_is_refused(self):
        layout = Layout(TEXT)
        for name, types, message in (
                ("lk_other", {}, "has no struct lk_other"),
                ("lk_thing", {"size": ctypes.c_uint32}, "has no field lk_thing.size"),
                ("lk_thing", {"count": ctypes.c_uint64}, "has 4 bytes in the lockstep library"),
                ("lk_thing", {"count": ctypes.c_int32}, "is of kind uint")):
            with self.assertRaisesRegex(ImportError, message):
                layout.struct(name, **types)

    def test_structs_of_the_library(self):
        """The text agrees with the rules of the compiler, which ctypes knows, too."""
        class Shape(ctypes.Structure):
            _fields_ = [("rank", ctypes.c_uint32), ("dims", ctypes.c_uint64 * _library.RANK_MAX)]

        class Tensor(ctypes.Structure):
            _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_uint32), ("shape", Shape),
                        ("data", ctypes.c_void_p)]

        for own, theirs in ((Shape, _library.Shape), (Tensor, _library.Tensor)):
            self.assertEqual(ctypes.sizeof(own), ctypes.sizeof(theirs))
            for name, _ in own._fields_:
                self.assertEqual(getattr(own, name).offset, getattr(theirs, name).offset, name)


class Failures(unittest.TestCase):
    def test_status_and_message(self):
        with self.assertRaises(lockstep.Error) as caught:
            _library.lk.checkpoint_open(ctypes.c_void_p(), b"/nonexistent", None, 0)
        self.assertIn("/nonexistent", str(caught.exception))
        self.assertRegex(caught.exception.status, "^E[A-Z]+$")

    def run_python(self, program, **env):
        with tempfile.TemporaryDirectory() as folder:
            return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                                  cwd=folder, env=support.environment(**env))

    def test_missing_library(self):
        ended = self.run_python("import lockstep", LOCKSTEP_LIBRARY="/nonexistent/lib.so")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("ImportError: the lockstep library cannot be loaded", ended.stderr)
        self.assertIn("/nonexistent/lib.so: no such file", ended.stderr)

    def test_library_without_a_function(self):
        program = """
            from lockstep import _library
            _library._FUNCTIONS["lk_unheard_of"] = (None, [])
            _library._Functions()"""
        ended = self.run_python(textwrap.dedent(program))
        self.assertIn("ImportError: the lockstep library has no function lk_unheard_of",
                      ended.stderr)


class Command(unittest.TestCase):
    def test_module_runs_it(self):
        if not (support.ROOT / "build" / "release" / "bin" / "lockstep").exists():
            self.skipTest("build/release has no command")
        ended = subprocess.run([sys.executable, "-m", "lockstep", "version"], capture_output=True,
                               text=True, env=support.environment())
        self.assertEqual(ended.stdout.split(), ["lockstep", lockstep.__version__], ended.stderr)
        ended = subprocess.run([sys.executable, "-m", "lockstep", "unknown"], capture_output=True,
                               env=support.environment())
        self.assertNotEqual(ended.returncode, 0)


if __name__ == "__main__":
    unittest.main()
