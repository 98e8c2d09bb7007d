"""Tests that the compressor powersgd gives what torch's powerSGD_hook gives.

Workers of torch run the hook over Gloo, with error feedback and warm start.  Here the same
gradients are those of groups.  Both begin with the same Q.  A gradient has singular values that
differ, as those of models do: where they are alike, differences by rounding grow with the steps.
"""
import multiprocessing
import os
import sys
import tempfile
import unittest

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as hook
except ImportError:
    print("torch is not installed, or has no powerSGD_hook")
    sys.exit(77)

from compressors import Compression, Key, POINTER, encode, find, load

WORKERS, STEPS, SAMPLES = 3, 8, 2
SHAPES = [(37, 53), (64, 24), (20, 100), (16, 8, 3, 3)]


def count(shape):
    return torch.Size(shape).numel()


def noise(shape, *seeds):
    number = 0
    for seed in seeds:
        number = 1000 * number + seed
    return torch.randn(shape, generator=torch.Generator().manual_seed(number))


def gradient(which, worker, step):
    """Returns a matrix with six directions, each twice as large as the one before, and noise."""
    rows = SHAPES[which][0]
    cols = count(SHAPES[which]) // rows
    matrix = 0.1 * noise((rows, cols), 1, which, worker, step)
    for a in range(6):
        left, right = noise((rows, 1), 2, which, worker, a), noise((1, cols), 3, which, a)
        matrix += 2 ** a * (1 + 0.1 * step) * left @ right
    return matrix


# ---- torch ------------------------------------------------------------------------------------


class Bucket:
    """A bucket of one worker's gradients, with what the hook asks of torch's own."""

    def __init__(self, matrices):
        self.flat = torch.cat([matrix.reshape(-1) for matrix in matrices])

    def buffer(self):
        return self.flat

    def gradients(self):
        parts = self.flat.split([count(shape) for shape in SHAPES])
        return [part.view(shape) for part, shape in zip(parts, SHAPES)]

    def index(self):
        return 0

    def is_last(self):
        return True


def steps(worker, rank, factors):
    """Returns the averages and this worker's errors of all steps."""
    state = hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    state.iter = 2
    state.q_memory_dict[0] = factors.clone()  # processes share the memory of what they are given
    state.p_memory_dict[0] = torch.zeros(rank * sum(shape[0] for shape in SHAPES))
    averages, errors = [], []
    for step in range(STEPS):
        bucket = Bucket([gradient(i, worker, step) for i in range(len(SHAPES))])
        hook.powerSGD_hook(state, bucket).wait()
        averages.append(bucket.flat.clone())
        errors.append(state.error_dict[0].clone())
    return averages, errors


def work(worker, folder, runs):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=worker,
                            world_size=WORKERS)
    torch.save([steps(worker, *run) for run in runs], f"{folder}/{worker}")
    os._exit(0)  # Gloo's threads may outlive the interpreter


def run_torch(runs):
    """Returns the averages and the sums of errors, of all steps, for each run: a rank and Q."""
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=work, args=(w, folder, runs)) for w in range(WORKERS)]
        for process in workers:
            process.start()
        for process in workers:
            process.join()
        results = [torch.load(f"{folder}/{w}") for w in range(WORKERS)]
    return [(of_run[0][0], [sum(errors) for errors in zip(*(errors for _, errors in of_run))])
            for of_run in zip(*results)]


# ---- Lockstep ---------------------------------------------------------------------------------


class Tensor:
    """A tensor of all groups."""

    def __init__(self, which, rank, seed):
        self.which, self.rank, self.library, self.by = which, rank, load(), find(b"powersgd")
        rows = SHAPES[which][0]
        self.key = Key(rows=rows, cols=count(SHAPES[which]) // rows, tensor=which)
        self.options = Compression(rank=rank, min_rate=2, ratio=0.01, seed=seed)
        self.p, self.q = torch.zeros(rank, rows), torch.zeros(rank, self.key.cols)
        self.errors = torch.zeros(WORKERS, rows, self.key.cols)
        sizes = [self.by.bytes(self.options, self.key, turn) for turn in range(2)]
        assert sizes == [4 * self.p.numel(), 4 * self.q.numel()], sizes

    def begin(self):
        self.by.begin(self.options, self.key, self.q.data_ptr())

    def encode(self, turn, before, values, combined):
        """Does a round: leaves the sum of the groups' messages in `combined`."""
        messages = torch.zeros(WORKERS, *combined.shape)
        for group in range(WORKERS):
            self.key.group = group
            encode(self.by, self.options, self.key, turn, before.data_ptr(),
                   values[group].data_ptr(), messages[group].data_ptr())
        combined.copy_(messages.sum(0))
        self.by.settle(self.options, self.key, turn, combined.data_ptr())

    def step(self, step):
        """Returns the sum over the groups."""
        values = torch.stack([gradient(self.which, w, step) for w in range(WORKERS)])
        size, out = values[0].numel(), torch.zeros_like(values[0])
        self.key.step = step
        self.begin()
        for group in range(WORKERS):
            self.library.lk_feedback_add(size, self.errors[group].data_ptr(), SAMPLES,
                                         values[group].data_ptr())
        self.encode(0, self.q, values, self.p)
        self.encode(1, self.p, values, self.q)
        for group in range(WORKERS):
            self.library.lk_feedback_keep(size, values[group].data_ptr(), SAMPLES,
                                          self.errors[group].data_ptr())
        messages = (POINTER * 2)(self.p.data_ptr(), self.q.data_ptr())
        self.by.decode(self.options, self.key, messages, 0, size, out.data_ptr())
        return out


def open_tensors(rank, seed):
    return [Tensor(i, rank, seed) for i in range(len(SHAPES))]


def first_factors(rank, seed):
    """Returns Q of all tensors as torch stores it."""
    tensors = open_tensors(rank, seed)
    for tensor in tensors:
        tensor.begin()
    return torch.cat([tensor.q.t().reshape(-1) for tensor in tensors])


def differ(ours, theirs):
    """Returns the largest relative difference of tensors from the parts of a bucket."""
    parts = theirs.split([count(shape) for shape in SHAPES])
    return max(float((one.reshape(-1) - other).norm() / other.norm())
               for one, other in zip(ours, parts))


class PowersgdTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        runs = [(1, 0), (2, 0), (4, 0), (2, 1)]
        cls.theirs = dict(zip(runs, run_torch([(rank, first_factors(rank, seed))
                                               for rank, seed in runs])))

    def compare(self, rank, seed_of_torch):
        """Returns the largest differences of sums and of errors, over all steps."""
        averages, errors = self.theirs[rank, seed_of_torch]
        tensors, sums, kept = open_tensors(rank, 0), 0, 0
        for step in range(STEPS):
            outs = [tensor.step(step) for tensor in tensors]
            left = [SAMPLES * tensor.errors.sum(0) for tensor in tensors]
            sums = max(sums, differ(outs, WORKERS * averages[step]))
            kept = max(kept, differ(left, errors[step]))
        return sums, kept

    def test_the_same_sums_and_errors(self):
        for rank in (1, 2, 4):
            with self.subTest(rank=rank):
                sums, kept = self.compare(rank, 0)
                self.assertLess(sums, 1e-5)
                self.assertLess(kept, 1e-4)

    def test_another_first_factor_is_seen(self):
        self.assertGreater(self.compare(2, 1)[0], 1e-3)


if __name__ == "__main__":
    unittest.main()
