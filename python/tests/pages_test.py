"""The programs in the pages of docs/ run as they stand there.

A program is a block of code whose first line is a comment with its name: `# ours_ddp.py: ...`."""

import pathlib
import re
import tempfile
import unittest

from support import ROOT, launch

PAGES = ("coming-from", "howto-pytorch")


def programs(language):
    """Return the programs of all pages, by name."""
    found = {}
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text()
        for body in re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            name = re.match(r"# (\w+\.py)\b", body)
            if name:
                first, lines = found.get(name[1], body), body.splitlines()[1:]
                assert first.splitlines()[1:] == lines, f"two programs are named {name[1]}"
                found[name[1]] = body
    return found


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.programs = programs("python")
        (self.folder / "toy.py").write_text(self.programs["toy.py"])

    def weights(self, name, workers, *launcher):
        ended = launch(self.programs[name], workers, *launcher, folder=self.folder,
                       env={"PYTHONPATH": f"{ROOT / 'python'}:{self.folder}"})
        self.assertEqual(ended.status, 0, name + "\n" + ended.out + ended.err)
        return ended.value("weights")

    def test_ours_run(self):
        for name in ("ours_hvd.py", "ours_ds.py", "ours_jax.py", "own_model.py"):
            with self.subTest(name):
                self.assertRegex(self.weights(name, 2), r"^[0-9a-f]{64}$")

    def test_ours_have_the_same_bits_on_any_number_of_workers(self):
        self.assertEqual(self.weights("ours_ddp.py", 3), self.weights("ours_ddp.py", 1))

    def test_zero3_has_the_bits_of_one_host(self):
        self.assertEqual(self.weights("ours_fsdp.py", 2, "--hosts", "2"),
                         self.weights("ours_fsdp.py", 1))

    def test_theirs_are_python(self):
        for name, text in self.programs.items():
            with self.subTest(name):
                compile(text, name, "exec")


if __name__ == "__main__":
    unittest.main()
