"""A run over MPI on two emulated hosts has the weights of one worker."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import BUILD, TIMEOUT_S, environment

MODULES = BUILD / "lib" / "lockstep"
PROGRAM = """
import torch
import lockstep.torch as lk

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.randn(8, generator=torch.Generator().manual_seed(i)), i % 2

def loss_sum(model, batch):
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y, reduction="sum"), y.numel()

run = lk.init(seed=1, virtual_workers=4, strategy="zero3")
model = run.prepare(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(),
                                        torch.nn.Linear(16, 2)))
opt = lk.AdamW(model.parameters(), lr=1e-2)
data = run.loader(Points(), global_batch=12, micro_batch=3)
for step in run.steps(6):
    run.step(loss_sum, data, opt)
run.print("weights", run.weights_hash())
"""


def weights(path, *launcher, **env):
    command = [*launcher, sys.executable, str(path)]
    ended = subprocess.run(command, env=environment(OMP_NUM_THREADS=1, **env), text=True,
                           capture_output=True, timeout=TIMEOUT_S)
    found = [line for line in ended.stdout.splitlines() if line.startswith("weights ")]
    if ended.returncode != 0 or len(found) != 1:
        raise AssertionError(ended.stdout + ended.stderr)
    return found[0]


class OverMpi(unittest.TestCase):
    def test_weights_are_those_of_one_worker(self):
        options = {"openmpi": ["--oversubscribe", "--bind-to", "none"], "mpich": []}
        if os.getuid() == 0:
            options["openmpi"].append("--allow-run-as-root")
        there = [name for name in options if shutil.which("mpirun." + name)
                 and (MODULES / f"lockstep-mpi-{name}.so").exists()]
        if not there:
            self.skipTest("there is no MPI with a module")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "program.py"
            path.write_text(PROGRAM)
            wanted = weights(path)
            name = there[0]   # tests/mpi/train trains under all of them
            got = weights(path, "mpirun." + name, *options[name], "-n", "2",
                          LOCKSTEP_MPI_HOSTS=2, LOCKSTEP_MPI="on", LOCKSTEP_MODULES=MODULES)
            self.assertEqual(got, wanted)


if __name__ == "__main__":
    unittest.main()
