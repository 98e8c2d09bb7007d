"""Which samples a virtual worker gets, in which order, and with which random numbers."""

import inspect
import random
import tempfile
import unittest

import torch

import support
import lockstep
from lockstep.torch.data import Loader, cut
from lockstep.torch.stream import Stream, is_stream

V, BATCH, MICRO = 4, 16, 2

REPLACED = """
    import multiprocessing, os
    import torch
    import lockstep.torch as lk

    class Ones(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return torch.ones(4)

    def loss_sum(model, batch):
        return model(batch).sum(), len(batch)

    run = lk.init(virtual_workers=2)
    model = run.prepare(torch.nn.Linear(4, 1))
    opt = lk.SGD(model.parameters())
    for epoch in range(3):
        data = run.loader(Ones(), global_batch=4, num_workers=2,
                          multiprocessing_context=os.environ.get("CONTEXT"))
        for step in run.steps(2 * epoch + 2):
            run.step(loss_sum, data, opt)
    run.print("children", len(multiprocessing.active_children()))
"""


class Numbers(torch.utils.data.Dataset):
    """Sample i is i and a random number from each generator."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return torch.tensor([i, torch.rand(()).item(), random.random()])


class Flow(torch.utils.data.IterableDataset):
    """The same samples, to be iterated over."""

    def __init__(self, length):
        self.numbers = Numbers(length)

    def __iter__(self):
        return (self.numbers[i] for i in range(len(self.numbers)))


def loader(length=50, **options):
    return Loader(Numbers(length), 1, V, BATCH, MICRO, **options)


def stream(length=50, **options):
    return Stream(Flow(length), 1, V, BATCH, MICRO, **options)


def draw(samples):
    """Collate samples to random numbers, one for each."""
    return torch.rand(len(samples))


def places(data):
    return [(v, m) for v in range(V) for m in range(data.micro_count)]


def epoch(data, steps, first=0):
    """Return the numbers of the samples of some steps, and all values that were read."""
    read = [data.fetch_counted(s, v, m) for s in range(first, first + steps)
            for v, m in places(data)]
    rows = torch.cat([batch for batch, count in read if count])
    return rows[:, 0].int().tolist(), rows


class Data(unittest.TestCase):
    def test_the_package_is_the_one_beside_these_tests(self):
        self.assertTrue(lockstep.__file__.startswith(str(support.ROOT)))

    def test_every_sample_once_in_an_epoch(self):
        numbers, _ = epoch(loader(64), 4)
        self.assertEqual(sorted(numbers), list(range(64)))
        self.assertNotEqual(numbers, list(range(64)))
        self.assertNotEqual(epoch(loader(64), 4, first=4)[0], numbers)
        self.assertEqual(epoch(loader(64, shuffle=False), 4)[0], list(range(64)))

    def test_last_batch(self):
        self.assertEqual(loader(50).steps_per_epoch, 3)
        self.assertEqual(loader(50, drop_last=False).steps_per_epoch, 4)
        numbers, _ = epoch(loader(50, drop_last=False), 4)
        self.assertEqual(sorted(numbers), list(range(50)))
        self.assertEqual(epoch(stream(50, drop_last=False), 4)[0], list(range(50)))

    def test_random_numbers_depend_on_epoch_and_index_alone(self):
        for make in loader, stream:
            _, wanted = epoch(make(), 6)
            data = make()
            for s, v, m in [(4, 3, 1), (0, 0, 0), (5, 1, 0), (4, 3, 1)]:
                batch, count = data.fetch_counted(s, v, m)
                at = (s * BATCH) + (v * data.micro_count + m) * MICRO
                self.assertTrue(torch.equal(batch, wanted[at:at + count]), (make, s, v, m))
            self.assertFalse(torch.equal(wanted[:BATCH, 1], wanted[3 * BATCH:4 * BATCH, 1]))

    def test_data_workers_read_the_same(self):
        data = loader(num_workers=1)
        _, wanted = epoch(loader(), 2)
        rows = []
        for step in range(2):
            data.begin(step, [0, 1, 2, 3])
            rows += [data.fetch_counted(step, v, m)[0] for v, m in places(data)]
        self.assertTrue(torch.equal(torch.cat(rows), wanted))
        again, _ = data.fetch_counted(0, 2, 1)   # not the next one that was read ahead
        self.assertTrue(torch.equal(again, wanted[10:12]))
        data.close()

    def test_random_numbers_of_collate_depend_on_the_place_alone(self):
        tensors = torch.utils.data.TensorDataset(torch.zeros(64))
        for make in (lambda **more: Loader(tensors, 1, V, BATCH, MICRO, **more), loader, stream):
            wanted = {}
            for at in [(0, 0, 0), (0, 0, 1), (0, 3, 0), (2, 0, 0)]:
                wanted[at] = make(collate_fn=draw).fetch_counted(*at)[0].tolist()
            self.assertEqual(len(set(map(str, wanted.values()))), 4, wanted)
            data = make(collate_fn=draw)
            for at in reversed(wanted):
                torch.rand(3)
                self.assertEqual(data.fetch_counted(*at)[0].tolist(), wanted[at], (make, at))
            passes = [[data.collate(samples, i).tolist() for i, samples in
                       enumerate(data.in_order()) if not i % other] for other in (1, 2)]
            self.assertEqual(passes[0][::2], passes[1])
            self.assertEqual(len(set(map(str, passes[0]))), len(passes[0]))

    def test_data_are_read_with_one_thread_as_in_data_workers(self):
        def threads(samples):
            return torch.tensor([*samples, torch.get_num_threads()])

        class Threads(Numbers):
            def __getitem__(self, i):
                return torch.get_num_threads()

        class ThreadsFlow(Flow):
            def __iter__(self):
                return (torch.get_num_threads() for _ in range(64))

        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            for data in (Loader(Threads(64), 1, V, BATCH, MICRO, collate_fn=threads),
                         Stream(ThreadsFlow(64), 1, V, BATCH, MICRO, collate_fn=threads)):
                self.assertEqual(data.fetch_counted(0, 0, 0)[0].tolist(), [1, 1, 1])
                samples = next(data.in_order())
                self.assertEqual(data.collate(samples, 0).tolist(), [1, 1, 1])
                self.assertEqual(torch.get_num_threads(), 2)
        finally:
            torch.set_num_threads(before)

    def test_data_workers_collate_the_same(self):
        data, alone = loader(num_workers=1, collate_fn=draw), loader(collate_fn=draw)
        data.begin(0, [1, 3])
        for v in (1, 3):
            for m in range(data.micro_count):
                self.assertTrue(torch.equal(data.fetch_counted(0, v, m)[0],
                                            alone.fetch_counted(0, v, m)[0]))
        data.close()

    def test_data_workers_of_a_replaced_loader_end(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = support.launch(REPLACED, 1, folder=folder)
        self.assertEqual((ended.status, ended.value("children")), (0, "2"), ended.err)

    def test_a_data_worker_that_imports_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = support.launch(REPLACED, 1, folder=folder, real=True,
                                   env={"CONTEXT": "forkserver"})
        self.assertNotEqual(ended.status, 0)
        self.assertIn("init() in a process that only imports this program", ended.err)

    def test_what_does_not_divide_is_refused(self):
        for arguments, words in [((4, 18, None), "not a multiple of the 4 virtual workers"),
                                 ((4, 16, 3), "not a multiple of micro_batch 3")]:
            with self.assertRaisesRegex(ValueError, words):
                cut(*arguments)
        with self.assertRaisesRegex(ValueError, "10 samples, fewer than global_batch 16"):
            loader(10)
        with self.assertRaisesRegex(ValueError, "fewer samples than global_batch 16"):
            stream(10).fetch_counted(0, 0, 0)

    def test_other_options_are_refused(self):
        for workers in (0, 1):
            for name in ("sampler", "batch_sampler", "batch_size", "generator", "in_order"):
                if name in inspect.signature(torch.utils.data.DataLoader).parameters:
                    with self.assertRaisesRegex(TypeError, f"leave out {name}: run.loader"):
                        loader(num_workers=workers, **{name: 1})
            with self.assertRaisesRegex(TypeError, "no option shufle"):
                loader(num_workers=workers, shufle=False)
            loader(num_workers=workers, pin_memory=True, prefetch_factor=3)

    def test_streams_are_recognised(self):
        self.assertTrue(is_stream(Flow(3)))
        self.assertTrue(is_stream(iter([1])))
        self.assertFalse(is_stream(Numbers(3)))
        self.assertFalse(is_stream([1, 2]))


if __name__ == "__main__":
    unittest.main()
