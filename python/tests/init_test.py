"""What init() is given is checked, and named if it cannot be used.  So are optimizers."""

import pathlib
import tempfile
import unittest

import torch
from support import launch, nursery
import lockstep.torch as lk
from lockstep.torch import optim

RUN = """
    import pathlib
    import lockstep.torch as lk
    run = lk.init(virtual_workers=2, flight=pathlib.Path("records"))
"""


class Init(unittest.TestCase):
    def test_numbers_have_ranges(self):
        for name, value in (("seed", -1), ("seed", 2 ** 64), ("virtual_workers", 0),
                            ("threads", 0), ("threads", 4097), ("audit_steps", -1),
                            ("bucket_bytes", -1), ("shard_hosts", -1), ("timeout", -1.0),
                            ("timeout", 1e8), ("timeout", float("nan"))):
            with self.subTest(name), self.assertRaisesRegex(ValueError,
                                                            f"^{name} is {value}: give .* to "):
                lk.init(**{name: value})
        with self.assertRaisesRegex(TypeError, "^seed is 1.5: give a whole number$"):
            lk.init(seed=1.5)

    def test_a_path_may_be_a_path(self):
        with tempfile.TemporaryDirectory() as folder:
            for rank in nursery().run(RUN, 2, folder=folder):
                self.assertEqual(rank.status, 0, rank.err)
            self.assertTrue(list(pathlib.Path(folder, "records").iterdir()))

    def test_the_launcher_decides_about_flight_records(self):
        note = "under lockstep run, init(flight=...) has no effect"
        for options, count in (((), 1), (("--flight-recorder", "others"), 0)):
            with tempfile.TemporaryDirectory() as folder:
                ended = launch(RUN, 2, *options, folder=folder)
                self.assertEqual(ended.status, 0, ended.err)
                self.assertEqual(ended.err.count(note), count, ended.err)
                self.assertFalse(pathlib.Path(folder, "records").exists())

    def test_optimizers_that_need_a_closure(self):
        params = [torch.nn.Parameter(torch.ones(2))]
        with self.assertRaisesRegex(TypeError, r"^step\(\) of LBFGS needs 'closure'"):
            optim.adopt(torch.optim.LBFGS(params))
        for kind in torch.optim.Adam, torch.optim.SGD, torch.optim.Rprop:
            scheduled = kind(params, lr=0.1)
            torch.optim.lr_scheduler.StepLR(scheduled, 1)
            self.assertIs(optim.adopt(scheduled).torch, scheduled)


if __name__ == "__main__":
    unittest.main()
