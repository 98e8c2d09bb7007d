#!/usr/bin/env python3
"""losses.py -- the losses of tables against PyTorch: same weights, same rows, same losses.

For each loss: writes a table, trains an mlp of `lockstep` on it for 5 steps of the whole table, and
trains the same in PyTorch with reduction="mean", in FP64.  The losses of all steps must agree within
1e-6.  Standardisation and levels are computed here from their definitions.  Then PyTorch gets the
targets of other rows, and the losses must differ.

    tests/parity/losses.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where PyTorch is absent.
"""
import csv, json, pathlib, subprocess, sys, tempfile

from parity import COMMAND, F, np, torch, write_safetensors

ROWS, STEPS, LIMIT, COLOURS = 24, 5, 1e-6, ("blue", "green", "red")
CASES = {
    "mse": ("a,b", ["--loss", "mse"], lambda x, y: F.mse_loss(x, y)),
    "huber": ("a", ["--loss", "huber", "--huber-delta", "0.5"], lambda x, y: F.huber_loss(x, y, delta=0.5)),
    "bce": ("p,q,r", ["--loss", "bce"], lambda x, y: F.binary_cross_entropy_with_logits(x, y)),
    "smoothing": ("kind", ["--label-smoothing", "0.1"], lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
}


def make_table(path):
    rng = np.random.default_rng(7)
    table = {"u": 100 + 30 * rng.standard_normal(ROWS), "colour": rng.choice(COLOURS, ROWS),
             "v": rng.uniform(-1, 1, ROWS), "a": rng.standard_normal(ROWS), "b": 3 * rng.standard_normal(ROWS),
             "p": rng.integers(0, 2, ROWS), "q": rng.integers(0, 2, ROWS), "r": rng.integers(0, 2, ROWS),
             "kind": rng.choice(["x", "y", "z"], ROWS)}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values()))
    return table


def inputs_of(table, targets):
    columns = []
    for name, values in table.items():
        if name in targets:
            continue
        if values.dtype.kind == "U":
            columns += [values == level for level in sorted(set(values))]
        else:
            columns.append((values - values.mean()) / values.std())
    return np.stack(columns, 1).astype(np.float32).astype(np.float64)


def targets_of(table, targets):
    if targets == ["kind"]:
        return torch.from_numpy(np.searchsorted(["x", "y", "z"], table["kind"]))
    return torch.from_numpy(np.stack([table[t] for t in targets], 1).astype(np.float32)).double()


def run_torch(x, y, loss_of, weights):
    w = {k: torch.nn.Parameter(torch.from_numpy(v).double()) for k, v in weights.items()}
    optimizer = torch.optim.SGD(w.values(), lr=0.1)
    out = lambda: F.relu(x @ w["fc0.weight"].T + w["fc0.bias"]) @ w["fc1.weight"].T + w["fc1.bias"]
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(out(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_lockstep(folder, target, options):
    log = folder / "run.jsonl"
    subprocess.run([COMMAND, "train", "mlp", "--data", str(folder / "table.csv"), "--target", target,
                    "--hidden", "8", "--init", str(folder / "init.safetensors"), "--order", "sequential",
                    "--global-batch", str(ROWS), "--micro-batch", "4", "--virtual-workers", "3",
                    "--workers", "2", "--steps", str(STEPS), "--optimizer", "sgd", "--lr", "0.1",
                    "--momentum", "0", "--weight-decay", "0", "--log", str(log), "--quiet", *options],
                   check=True, stdout=subprocess.DEVNULL)
    return [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "loss" in line]


def compare(name, shift):
    target, options, loss_of = CASES[name]
    targets = target.split(",")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        table = make_table(folder / "table.csv")
        x, y = torch.from_numpy(inputs_of(table, targets)), targets_of(table, targets)
        rng = np.random.default_rng(3)
        outs = 3 if name == "smoothing" else len(targets)
        shapes = {"fc0.weight": (8, x.shape[1]), "fc0.bias": (8,), "fc1.weight": (outs, 8), "fc1.bias": (outs,)}
        weights = {k: (0.5 * rng.standard_normal(s)).astype(np.float32) for k, s in shapes.items()}
        write_safetensors(folder / "init.safetensors", weights)
        ours = run_lockstep(folder, target, options)
        theirs = run_torch(x, y.roll(1, 0) if shift else y, loss_of, weights)
    assert len(ours) == len(theirs) == STEPS
    differ = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    print(f"{name:10} loss {theirs[0]:.6f} -> {theirs[-1]:.6f}   largest relative difference {differ:.2e}")
    return differ


def main():
    torch.set_num_threads(1)
    worst = max(compare(name, False) for name in CASES)
    least = min(compare(name, True) for name in CASES)  # another row's target must show
    print(f"worst {worst:.2e}, limit {LIMIT:.0e}; shifted by a row at least {least:.2e}")
    return worst > LIMIT or least <= LIMIT


if __name__ == "__main__":
    sys.exit(main())
