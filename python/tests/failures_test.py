"""Every failure ends all ranks with one clear message each, and leaves nothing behind."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import warnings

import torch
import torch.nn.functional as F

from support import BUILD, TIMEOUT_S, environment, launch, nursery
from lockstep.torch.rehearsal import warn_of_mean

PROGRAM = """
    import os, pathlib, signal, sys, time
    import torch, torch.nn.functional as F
    import lockstep.torch as lk

    FAULT = os.environ.get("FAULT", "")

    def begun():
        pathlib.Path(f"begun.{run.rank}").touch()

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 200

        def __getitem__(self, i):
            if i == 7 and FAULT == "reader raises":
                raise OSError("no such picture")
            if i == 7 and FAULT == "reader killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if FAULT == "reader blocks" and torch.utils.data.get_worker_info():
                begun()
                while True:
                    time.sleep(60)
            x = torch.randn(8, generator=torch.Generator().manual_seed(i))
            return x, int(x.sum() > 0)

    turns = 0

    def loss_sum(model, batch):
        global turns
        turns += 1
        x, y = batch
        loss = F.cross_entropy(model(x), y, reduction="sum")
        if turns == 5 and run.rank == 1:
            if FAULT in ("raises", "raises with a hook"):
                raise ValueError("bad sample\\nin two lines")
            if FAULT == "exits":
                sys.exit(3)
            if FAULT == "interrupted":
                raise KeyboardInterrupt
            if FAULT == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "waits":
            begun()
            time.sleep(0.05)
        returned = {"nan": (loss * float("nan"), 4), "no count": loss, "no gradient":
                    (loss.detach(), 4), "no tensor": (loss.item(), 4), "negative": (loss, -4),
                    "fraction": (loss, 4.5), "nothing counts": (loss, 0),
                    "no sum": (loss.expand(2), 4)}
        return returned.get(FAULT, (loss, y.numel()))

    if FAULT == "other build" and os.environ["RANK"] == "1":
        torch.version.git_version = "another"
    if FAULT == "other processor" and os.environ["RANK"] == "1":
        from lockstep.torch import environment
        environment.processor = lambda: {"vendor": "GenuineTest", "instructions": []}
    run = lk.init(seed=1, virtual_workers=3, threads=int(os.environ.get("THREADS", 1)))
    if FAULT == "before the model" and run.rank == 1:
        raise ValueError("bad file")
    if FAULT == "fork" and os.fork() == 0:
        raise ValueError("in a child")
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    if FAULT == "shared memory":
        net[1].bias.data = net[0].bias.data[:2]
    if FAULT == "strides":
        net[1].bias.data = torch.zeros(4)[::2]
    model = run.prepare(net)
    if FAULT == "raises with a hook":
        before = sys.excepthook

        def hook(kind, error, trace):
            print("own hook", file=sys.stderr)
            before(kind, error, trace)

        sys.excepthook = hook
    parameters = list(model.parameters())
    opt = lk.AdamW(parameters[:2] if FAULT == "optimizer" else parameters, lr=1e-2)
    data = run.loader(Points(), global_batch=24, num_workers=int(os.environ.get("READERS", 0)),
                      worker_init_fn=lambda worker: pathlib.Path(f"started.{worker}").touch())
    for step in run.steps(int(os.environ.get("STEPS", 8))):
        if FAULT == "no step":
            continue
        run.step(loss_sum, torch.utils.data.DataLoader(Points()) if FAULT == "loader" else data,
                 opt)
        if FAULT == "flushes":
            torch.set_flush_denormal(True)
        if FAULT == "rate":
            opt.param_groups[0]["lr"] = 0.01 * (1 + run.rank)
        if FAULT == "freezes":
            net[0].bias.requires_grad = False
        if FAULT == "changes":
            with torch.no_grad():
                net[0].bias.zero_()
        if FAULT == "one rank" and run.rank == 0:
            run.weights_hash()
        if FAULT == "breaks" and run.rank == 1:
            break
    run.print("weights", run.weights_hash())
    if FAULT == "after the run" and run.rank == 1:
        raise ValueError("bad end")
"""

# Rank 2 dies when rank 0 has finished the third step.  On rank 1 the end of the step then fails, as
# if rank 2 had died in it.
SURVIVORS = """
    import os, pathlib, signal, time
    import torch, torch.nn.functional as F
    import lockstep.torch as lk
    from lockstep.torch import engine

    def loss_sum(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction="sum"), y.numel()

    def wait_for(condition):
        while not condition():
            time.sleep(0.01)

    finish, finished = engine.Engine._finish, 0

    def finish_and_die(self, number):
        global finished
        result = finish(self, number)
        finished += 1
        if finished == 3 and os.environ["RANK"] == "2":
            wait_for(pathlib.Path("finished").exists)
            os.kill(os.getpid(), signal.SIGKILL)
        if finished == 3 and os.environ["RANK"] == "1":
            wait_for(self.group.has_lost)
            raise lk.Error("EPEER", "rank 2 was lost in the step")
        return result

    if "DIES" in os.environ:
        engine.Engine._finish = finish_and_die
    run = lk.init(seed=1, virtual_workers=6, audit_steps=0)
    model = run.prepare(torch.nn.Linear(8, 2))
    opt = lk.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(48, 8)
    data = run.loader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), global_batch=12)
    for step in run.steps(6):
        run.step(loss_sum, data, opt)
        if step == 2 and run.rank == 0:
            pathlib.Path("finished").touch()
    run.print("weights", run.size, run.weights_hash())
"""


def await_files(folder, *names):
    ends = time.monotonic() + TIMEOUT_S / 2
    while not all((pathlib.Path(folder) / name).exists() for name in names):
        assert time.monotonic() < ends, f"no {names} in {os.listdir(folder)}"
        time.sleep(0.02)


class Failures(unittest.TestCase):
    def run_program(self, fault, workers=2, await_=(), then=None, env=None, **options):
        """Run the program and check that it leaves neither processes nor files."""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as scratch:
            def meanwhile(pids):
                await_files(folder, *await_)
                if then:
                    then(pids)

            env = dict(env or {}, FAULT=fault, TMPDIR=scratch, PYTHONWARNINGS="ignore")
            ranks = nursery().run(PROGRAM, workers, folder=folder, env=env,
                                     meanwhile=meanwhile, **options)
            self.assertEqual(nursery().left_behind(), [])
            killed = any(rank.status == -signal.SIGKILL for rank in ranks)
            self.assertEqual([name for name in os.listdir(scratch)
                              if not (killed and name.startswith("pymp-"))], [])
        return ranks

    def assert_line(self, rank, *texts):
        """A rank has printed one line with the texts."""
        self.assertEqual(len(rank.err.splitlines()), 1, rank.err)
        self.assertTrue(rank.err.startswith("lockstep: "), rank.err)
        for text in texts:
            self.assertIn(text, rank.err)

    def assert_lines(self, fault, *texts, workers=2, **options):
        """All ranks print a line with the texts."""
        for rank in self.run_program(fault, workers, **options):
            self.assertEqual(rank.status, 1)
            self.assert_line(rank, *texts)

    def assert_blamed(self, fault, *texts, workers=2, **options):
        """One rank prints a traceback, all others a line, and all have the texts."""
        ranks = self.run_program(fault, workers, **options)
        self.assertEqual([r.status for r in ranks], [1] * workers)
        blamed = [r for r in ranks if "Traceback" in r.err]
        self.assertEqual(len(blamed), 1, [r.err for r in ranks])
        for text in texts:
            self.assertIn(text, blamed[0].err)
        for rank in ranks:
            if rank is not blamed[0]:
                self.assert_line(rank, *texts)
        return ranks.index(blamed[0])

    # ---- One rank fails ----------------------------------------------------------------------

    def test_nothing_fails(self):
        """The checks of the other tests hold for the program as such."""
        for env in ({}, {"READERS": 2}):
            ranks = self.run_program("", env=env)
            self.assertEqual([(r.status, r.err) for r in ranks], [(0, ""), (0, "")])

    def test_an_exception(self):
        self.assertEqual(self.assert_blamed("raises", "ValueError: bad sample", workers=3), 1)
        self.assertEqual(self.assert_blamed("before the model", "ValueError: bad file"), 1)

    def test_an_exception_with_a_hook_of_the_program(self):
        self.assertEqual(self.assert_blamed("raises with a hook", "ValueError: bad sample"), 1)

    def test_an_exception_after_the_run(self):
        first, second = self.run_program("after the run")
        self.assert_line(first, "rank 1", "gave up", "ValueError: bad end")
        self.assertEqual(second.status, 1)

    def test_a_process_ends(self):
        first, second = self.run_program("exits")
        self.assertEqual((first.status, second.status, second.err), (1, 3, ""))
        self.assert_line(first, "rank 1", "sys.exit(3)")
        first, second = self.run_program("killed")
        self.assertEqual((first.status, second.status), (1, -signal.SIGKILL))
        self.assert_line(first, "rank 1", "ended without leaving the group", "at step ")

    def test_an_interrupt_of_one_rank(self):
        first, second = self.run_program("interrupted")
        self.assertEqual((first.status, second.status), (1, -signal.SIGINT))
        self.assert_line(first, "rank 1", "interrupted (Ctrl-C)")
        self.assert_line(second, "interrupted (Ctrl-C)")

    def test_a_rank_leaves_the_loop(self):
        first, second = self.run_program("breaks")
        self.assertEqual(first.status, 1)
        self.assert_line(first, "left the loop or ended early", "if run.rank == 0")
        self.assert_line(second, "rank 0 is at the next round of run.steps(), and rank 1 at")

    def test_a_forked_child_has_no_part(self):
        ranks = self.run_program("fork")
        self.assertEqual([r.status for r in ranks], [0, 0])

    def test_a_survivor_had_finished_the_step(self):
        """It goes on with one that had not."""
        with tempfile.TemporaryDirectory() as folder:
            ended = [launch(SURVIVORS, n, "--on-failure", "continue", folder=folder, env=env)
                     for n, env in ((3, {"DIES": 1}), (2, {}))]
        for end in ended:
            self.assertEqual(end.status, 0, end.err)
        self.assertEqual(*(end.value("weights") for end in ended))

    # ---- All ranks fail ----------------------------------------------------------------------

    def test_what_the_loss_function_returns(self):
        self.assert_blamed("no count", "returned Tensor; it must return (loss, count)")
        self.assert_blamed("no tensor", "sum of losses as a tensor of one element")
        self.assert_blamed("no sum", "sum of losses as a tensor of one element")
        self.assert_blamed("no gradient", "the loss does not depend on a parameter")
        self.assert_blamed("negative", "returned -4 as count")
        self.assert_blamed("fraction", "returned 4.5 as count")
        self.assert_blamed("nothing counts", "no mean")
        self.assert_lines("nan", "step 1: the loss of virtual worker", "is not finite")

    def test_a_mean_is_noticed(self):
        out, wanted = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
        means = (F.cross_entropy(out, wanted), out.mean(), F.mse_loss(out, torch.zeros(4, 3)))
        for loss in means:
            with self.assertWarnsRegex(UserWarning, r'returned a mean .* count 4.*reduction="sum"'):
                self.assertTrue(warn_of_mean(loss, 4))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for loss, count in ((means[0] * 4, 4), (means[0], 1), (out.sum(), 4),
                                (F.cross_entropy(out, wanted, reduction="sum"), 4)):
                self.assertFalse(warn_of_mean(loss, count))

    def test_calls(self):
        self.assert_blamed("flushes", "flushes tiny numbers", "torch.set_flush_denormal(True)")
        self.assert_blamed("no step", "must call run.step() once in each round")
        self.assert_blamed("optimizer", "does not have parameter '1.weight'")
        self.assert_blamed("loader", "data is a torch DataLoader: give its data set")
        self.assert_lines("rate", "rank 1 and rank 0 have other learning rates", "in step 2")
        self.assert_lines("one rank", "rank 0 is at run.weights_hash(), and rank 1 at the next")

    def test_parameters(self):
        self.assert_blamed("shared memory", "'0.bias' and '1.bias' share memory")
        self.assert_blamed("strides", "parameter '1.bias' are not consecutive in memory")
        self.assert_blamed("freezes", "parameter '0.bias' no longer requires gradients")
        self.assert_lines("changes", "parameter '0.bias'", "Change parameters only through steps")

    def test_more_workers_than_virtual_workers(self):
        self.assert_blamed("", "4 workers are more than the 3 virtual workers", workers=4)

    # ---- Joining -----------------------------------------------------------------------------

    def test_fewer_ranks_than_expected(self):
        self.assert_lines("", "rank 2", "has not joined within 1 s", expected=3,
                          env={"LOCKSTEP_TIMEOUT_MS": 1000})

    def test_a_rank_that_starts_late(self):
        """The launcher's limit is shorter than torch's import; the program's own one is not."""
        program = """
            import os, time
            import lockstep.torch as lk
            time.sleep(3 * int(os.environ["RANK"]))
            run = lk.init(virtual_workers=2, timeout=float(os.environ.get("TIMEOUT", 0)))
        """
        with tempfile.TemporaryDirectory() as folder:
            late = launch(program, 2, "--timeout", "1", folder=folder)
            patient = launch(program, 2, "--timeout", "1", folder=folder,
                             env={"TIMEOUT": TIMEOUT_S})
        self.assertRegex(late.err, r"waited 1\d{3} ms for rank 1")
        self.assertEqual((patient.status, patient.err), (0, ""))

    def test_ranks_that_differ(self):
        self.assert_lines("", "rank 1 and rank 0 differ in MKL_CBWR: 'COMPATIBLE' and None",
                          each=lambda rank: {"MKL_CBWR": "COMPATIBLE"} if rank else {})
        self.assert_lines("other build", "rank 1 and rank 0 differ in commit: 'another' and ")
        self.assert_lines("", "rank 2 and rank 0 differ in threads: 2 and 1", workers=3,
                          each=lambda rank: {"THREADS": 1 + rank // 2})

    def test_processors_that_differ(self):
        first, second = self.run_program("other processor")
        self.assertEqual((first.status, second.status, second.err), (0, 0, ""))
        self.assert_line(first, "rank 1 and rank 0 have other processors (GenuineTest and ")

    # ---- Data workers ------------------------------------------------------------------------

    def test_data_workers(self):
        self.assert_blamed("reader raises", "OSError: no such picture", env={"READERS": 1})
        self.assert_blamed("reader killed", "orker (pid", "kill", env={"READERS": 1})

    def test_data_workers_end_with_their_rank(self):
        """They are blocked, and do not see that their rank has ended."""
        ranks = self.run_program("reader blocks", 1, ["begun.0", "started.0"],
                                 lambda pids: os.kill(pids[0], signal.SIGKILL),
                                 env={"READERS": 1})
        self.assertEqual(ranks[0].status, -signal.SIGKILL)

    # ---- Interrupts --------------------------------------------------------------------------

    def test_interrupt_alone(self):
        rank, = self.run_program("waits", 1, ["begun.0"],
                                 lambda pids: os.killpg(pids[0], signal.SIGINT),
                                 env={"READERS": 1, "STEPS": 100000})
        self.assertEqual(rank.status, -signal.SIGINT)
        self.assert_line(rank, "rank 0: interrupted (Ctrl-C)")

    def test_interrupt_of_all(self):
        """As Ctrl-C at a launcher whose workers are in its process group: all end after a step."""
        def interrupt(pids):
            for pid in pids:
                os.killpg(pid, signal.SIGINT)

        ranks = self.run_program("waits", 2, ["begun.0", "begun.1"], interrupt,
                                 env={"READERS": 1, "STEPS": 100000})
        self.assertEqual([(r.status, r.err) for r in ranks], [(75, ""), (75, "")])
        self.assertIn("stopped on request after step", ranks[0].out)

    def test_interrupt_at_the_launcher(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program.py"
            program.write_text(textwrap.dedent(PROGRAM))
            command = [str(BUILD / "bin" / "lockstep"), "run", "-n", "2", "--no-prefix", "--",
                       sys.executable, str(program)]
            env = environment(FAULT="waits", STEPS=100000, READERS=1, PYTHONWARNINGS="ignore")
            with subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True,
                                  start_new_session=True) as job:
                await_files(folder, "begun.0", "begun.1")
                os.killpg(job.pid, signal.SIGINT)   # as a terminal does
                out, err = job.communicate(timeout=TIMEOUT_S)
        self.assertEqual(job.returncode, 75, err)
        self.assertIn("stopped on request after step", out)
        self.assertNotIn("Traceback", err)


if __name__ == "__main__":
    unittest.main()
