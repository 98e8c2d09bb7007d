"""Federated averaging of `lockstep train`: the weights of twenty lines of NumPy, with the server's
optimizers as Flower has them, and of the methods that it degenerates to.  This needs NumPy alone.

Controls: the mean over clients without their numbers of samples, and FedProx without its pull, have
other weights.
"""

import ctypes
import json
import pathlib
import subprocess
import tempfile
import unittest
from ctypes import c_double, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np

from support import BUILD, environment
from lockstep import _library

FEATURES, HIDDEN, CLASSES, SAMPLES = 6, 5, 3, 117
LR, SEED, ROUNDS = 0.2, 3, 6
TAU, ETA, BETAS = 1e-3, 0.03, (0.9, 0.99)
SPEC = f"synthetic:samples={SAMPLES},features={FEATURES},classes={CLASSES}"
SPLITS = ("iid", "shards", "dirichlet")
lib = ctypes.CDLL(_library.path)


class Options(ctypes.Structure):
    "lk_clients_options"
    _fields_ = [("struct_size", c_size_t), ("count", c_uint32), ("split", c_uint32),
                ("by", c_double), ("seed", c_uint64)]


class Clients:
    """The data, and who has them, from the library."""

    def __init__(self, count, split, by):
        data = _library.layout.struct("lk_dataset_options", struct_size=c_size_t, seed=c_uint64)
        self.dataset, self.handle = c_void_p(), c_void_p()
        assert lib.lk_dataset_open(ctypes.byref(self.dataset), SPEC.encode(),
                                   ctypes.byref(data(struct_size=ctypes.sizeof(data),
                                                     seed=SEED))) == 0
        assert lib.lk_clients_open(ctypes.byref(self.handle), self.dataset,
                                   ctypes.byref(Options(ctypes.sizeof(Options), count,
                                                        SPLITS.index(split), by, SEED))) == 0
        for name in ("samples", "sample_at", "stop"):
            getattr(lib, f"lk_clients_{name}").restype = c_uint64
        self.x, self.y = np.zeros((SAMPLES, FEATURES), np.float32), np.zeros(SAMPLES, np.int32)
        for i in range(SAMPLES):
            assert lib.lk_dataset_read(self.dataset, False, c_uint64(0), c_uint64(i),
                                       self.x[i:].ctypes.data_as(c_void_p),
                                       self.y[i:].ctypes.data_as(c_void_p)) == 0

    def close(self):
        lib.lk_clients_free(self.handle)
        lib.lk_dataset_free(self.dataset)

    def chosen(self, step, count):
        out = (c_uint32 * count)()
        lib.lk_clients_choose(self.handle, c_uint64(step), count, out)
        return list(out)

    def batches(self, client, step, epochs, batch):
        """Yield the samples of each local step."""
        n = lib.lk_clients_samples(self.handle, client)
        for epoch in range(epochs):
            at = [lib.lk_clients_sample_at(self.handle, client, c_uint64(step), c_uint64(epoch),
                                           c_uint64(p)) for p in range(n)]
            for first in range(0, n, batch or n):
                yield at[first:first + (batch or n)]


def gradient(w, x, y):
    """The gradient of the mean cross entropy of a layer with ReLU and a second one."""
    hidden = np.maximum(x @ w[0].T + w[1], 0)
    logits = hidden @ w[2].T + w[3]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    back = (p @ w[2]) * (hidden > 0)
    return [back.T @ x, back.sum(0), p.T @ hidden, p.sum(0)]


def serve(rule, w, delta, m, v):
    """One step of the server, as Flower writes FedAvg, FedAdagrad, FedYogi, and FedAdam without the
    corrections of its bias."""
    for i, d in enumerate(delta):
        if rule == "mean":
            w[i] = w[i] + d
            continue
        m[i] = d if rule == "adagrad" else BETAS[0] * m[i] + (1 - BETAS[0]) * d
        v[i] = {"adagrad": v[i] + d * d,
                "adam": BETAS[1] * v[i] + (1 - BETAS[1]) * d * d,
                "yogi": v[i] - (1 - BETAS[1]) * d * d * np.sign(v[i] - d * d)}[rule]
        w[i] = w[i] + ETA * m[i] / (np.sqrt(v[i]) + TAU)


def federate(w, clients, rule="mean", m=4, epochs=1, batch=5, mu=0.0, dropout=0.0, weighted=True):
    """Return the weights, and the drift of each round: the root mean square of the distances."""
    w, drifts = [a.astype(np.float64) for a in w], []
    first, second = [np.zeros_like(a) for a in w], [np.zeros_like(a) for a in w]
    for step in range(ROUNDS):
        sums, count, square = [np.zeros_like(a) for a in w], 0, 0
        for k in clients.chosen(step, m):
            own, steps = [a.copy() for a in w], list(clients.batches(k, step, epochs, batch))
            does = lib.lk_clients_stop(clients.handle, k, c_uint64(step), c_double(dropout),
                                       c_uint64(len(steps)))
            if does == 0 or (does < len(steps) and mu == 0):
                continue
            for at in steps[:does]:
                g = gradient(own, clients.x[at], clients.y[at])
                own = [a - LR * (b + mu * (a - c)) for a, b, c in zip(own, g, w)]
            n = lib.lk_clients_samples(clients.handle, k) if weighted else 1
            sums, count = [s + n * (a - b) for s, a, b in zip(sums, own, w)], count + n
            square += n * sum(((a - b) ** 2).sum() for a, b in zip(own, w))
        drifts.append((square / count) ** 0.5 if count > 0 else None)
        if count > 0:
            serve(rule, w, [s / count for s in sums], first, second)
    return w, drifts


def read(path):
    """Read a safetensors file with FP32 values."""
    raw = pathlib.Path(path).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + size])
    return {name: np.frombuffer(raw, np.float32, offset=8 + size + t["data_offsets"][0],
                                count=int(np.prod(t["shape"]))).reshape(t["shape"])
            for name, t in head.items() if name != "__metadata__"}


def train(folder, *options, data=SPEC):
    """Run the command, and return the weights at its end."""
    pathlib.Path(folder, "log").unlink(missing_ok=True)
    done = subprocess.run([str(BUILD / "bin" / "lockstep"), "train", "mlp", "--data", data,
                           "--hidden", str(HIDDEN), "--lr", str(LR), "--seed", str(SEED),
                           "--checkpoint", "ck", "--log", "log", "--quiet", *options],
                          cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    w = read(max(pathlib.Path(folder, "ck").glob("step-*")) / "model.safetensors")
    subprocess.run(["rm", "-r", "ck"], cwd=folder, check=True)
    return [w[name] for name in ("fc0.weight", "fc0.bias", "fc1.weight", "fc1.bias")]


def distance(one, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other))


def apart(one, other):
    """Return the largest relative difference of two lists, in which None is nothing."""
    return max(abs(a / b - 1) for a, b in zip(one, other) if a is not None and b is not None)


class Federated(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        tiny = train(self.folder.name, "--global-batch", "1", "--steps", "1", "--lr", "1e-30")
        self.start = tiny   # the initial weights

    def tearDown(self):
        self.folder.cleanup()

    def case(self, split, by, count=12, m=4, **options):
        """Return the weights of the command, the oracle's, and those without numbers of samples,
        and then the drifts of the three."""
        named = {"rule": "outer-optimizer", "epochs": "local-epochs", "batch": "client-batch",
                 "mu": "prox-mu", "dropout": "client-dropout"}
        words = [f"--{named[name]}={value}" for name, value in options.items()]
        words += ["--outer-lr", str(ETA)] if options.get("rule", "mean") != "mean" else []
        words += ["--split", split if split == "iid" else f"{split}:{by}", "--clients", str(count),
                  "--client-fraction", str(m / count), "--steps", str(ROUNDS), "--workers", "2"]
        if "batch" not in options:
            options["batch"] = 5
            words += ["--client-batch", "5"]
        clients = Clients(count, split, by)
        try:
            got = train(self.folder.name, *words)
            log = pathlib.Path(self.folder.name, "log").read_text().splitlines()
            drifts = [line["drift"] for line in map(json.loads, log) if "chosen" in line]
            return zip((got, drifts), federate(self.start, clients, m=m, **options),
                       federate(self.start, clients, m=m, weighted=False, **options))
        finally:
            clients.close()

    def test_oracle(self):
        cases = [dict(split="iid", by=0), dict(split="shards", by=2, epochs=3, batch=4),
                 dict(split="dirichlet", by=0.5, rule="adam"),
                 dict(split="dirichlet", by=0.3, rule="yogi", epochs=2),
                 dict(split="dirichlet", by=0.5, rule="adagrad", batch=0),
                 dict(split="dirichlet", by=0.5, mu=0.5, epochs=3),
                 dict(split="dirichlet", by=0.5, mu=0.5, epochs=3, dropout=0.6),
                 dict(split="dirichlet", by=0.5, dropout=0.6)]
        for case in cases:
            with self.subTest(**case):
                (got, wanted, unweighted), (drifts, spread, equal) = self.case(**case)
                self.assertLess(distance(got, wanted), 2e-5)
                self.assertEqual([d is None for d in drifts], [d is None for d in spread])
                self.assertLess(apart(drifts, spread), 1e-4)
                self.assertGreater(distance(self.start, wanted), 1e-2)
                if case["split"] == "dirichlet":   # clients of unequal size
                    self.assertGreater(distance(got, unweighted), 1e-3)
                    self.assertGreater(apart(drifts, equal), 1e-2)
        (pulled, *_), _ = self.case(**cases[5])
        (_, free, _), _ = self.case(split="dirichlet", by=0.5, epochs=3)
        self.assertGreater(distance(pulled, free), 1e-3)

    def test_degenerate(self):
        """One local step on all samples of all clients is a step on the whole data."""
        whole = train(self.folder.name, "--global-batch", str(SAMPLES), "--virtual-workers", "1",
                      "--steps", str(ROUNDS))
        (clients, *_), _ = self.case("iid", 0, m=12, batch=0)
        self.assertLess(distance(clients, whole), 1e-5)

    def test_local_sgd(self):
        """If all clients take part with as many samples, they are the replicas of local SGD."""
        rng = np.random.default_rng(1)
        np.save(f"{self.folder.name}/x.npy", rng.normal(size=(120, 6)).astype(np.float32))
        np.save(f"{self.folder.name}/y.npy", np.repeat(np.arange(3), 40).astype(np.int64))
        data, groups, steps = "npy:x.npy,y.npy", "4", 3
        local = train(self.folder.name, "--groups", groups, "--local-steps", str(steps), "--order",
                      "sequential", "--global-batch", "120", "--virtual-workers", groups, "--steps",
                      str(steps * ROUNDS), data=data)
        clients = train(self.folder.name, "--clients", groups, "--client-fraction", "1", "--split",
                        "shards:1", "--local-epochs", str(steps), "--steps", str(ROUNDS), data=data)
        self.assertLess(distance(local, clients), 2e-6)


if __name__ == "__main__":
    unittest.main()
