#!/usr/bin/env python3
"""losses.py -- the losses of tables against PyTorch: same weights, same rows, same losses.

For each loss: writes a table, trains an mlp of `lockstep` on it for 5 steps of the whole table, and
trains the same in PyTorch with reduction="mean", in FP64.  The losses of all steps must agree within
1e-6.  Standardisation and levels are computed here from their definitions.  Then PyTorch gets the
targets of other rows, and the losses must differ.  `lockstep eval` of another table, with a colour
that the first one lacks, must have the loss, the RMSE, the MAE and the accuracy that are computed here
in FP64 from the weights of the checkpoint.

    tests/parity/losses.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where PyTorch is absent.
"""
import csv, json, math, pathlib, subprocess, sys, tempfile

from parity import COMMAND, F, largest, np, read_safetensors, torch, write_safetensors

ROWS, STEPS, LIMIT, COLOURS = 24, 5, 1e-6, ("blue", "green", "red")
CASES = {
    "mse": ("a,b", ["--loss", "mse"], lambda x, y: F.mse_loss(x, y)),
    "huber": ("a", ["--loss", "huber", "--huber-delta", "0.5"], lambda x, y: F.huber_loss(x, y, delta=0.5)),
    "bce": ("p,q,r", ["--loss", "bce"], lambda x, y: F.binary_cross_entropy_with_logits(x, y)),
    "smoothing": ("kind", ["--label-smoothing", "0.1"], lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
}


def make_table(path, seed=7, colours=COLOURS):
    rng = np.random.default_rng(seed)
    table = {"u": 100 + 30 * rng.standard_normal(ROWS), "colour": rng.choice(colours, ROWS),
             "v": rng.uniform(-1, 1, ROWS), "a": rng.standard_normal(ROWS), "b": 3 * rng.standard_normal(ROWS),
             "p": rng.integers(0, 2, ROWS), "q": rng.integers(0, 2, ROWS), "r": rng.integers(0, 2, ROWS),
             "kind": rng.choice(["x", "y", "z"], ROWS)}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values()))
    return table


def inputs_of(table, targets, of=None):
    """Returns the inputs of a table, by the levels and means of the table `of`, its own unless given."""
    columns = []
    for name, values in table.items():
        if name in targets:
            continue
        known = values if of is None else of[name]
        if values.dtype.kind == "U":
            columns += [values == level for level in sorted(set(known))]
        else:
            columns.append((values - known.mean()) / known.std())
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
                    "--momentum", "0", "--weight-decay", "0", "--log", str(log), "--quiet",
                    "--checkpoint", str(folder / "run"), *options],
                   check=True, stdout=subprocess.DEVNULL)
    return [line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "loss" in line]


def write_weights(path, name, inputs, outs):
    rng = np.random.default_rng(3)
    shapes = {"fc0.weight": (8, inputs), "fc0.bias": (8,), "fc1.weight": (outs, 8), "fc1.bias": (outs,)}
    weights = {k: (0.5 * rng.standard_normal(s)).astype(np.float32) for k, s in shapes.items()}
    write_safetensors(path, weights)
    return weights


def errors_of(name, out, y):
    """Returns what an evaluation reports besides the loss, by numpy."""
    out, y = out.numpy(), y.numpy()
    if name == "smoothing":
        return {"accuracy": np.mean(out.argmax(1) == y)}
    if name == "bce":
        return {"accuracy": np.mean((out > 0) == (y > 0.5))}
    return {"rmse": np.sqrt(np.mean((out - y) ** 2)), "mae": np.mean(np.abs(out - y))}


def evaluate(name):
    """Returns how far `eval` of another table is from what is computed here."""
    target, options, loss_of = CASES[name]
    targets = target.split(",")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        trained, other = make_table(folder / "table.csv"), make_table(folder / "other.csv", 8, ("red", "violet"))
        x = torch.from_numpy(inputs_of(other, targets, trained))
        write_weights(folder / "init.safetensors", name, x.shape[1], 3 if name == "smoothing" else len(targets))
        run_lockstep(folder, target, options)
        ours = json.loads(subprocess.run([COMMAND, "eval", str(folder / "run"), "--data", str(folder / "other.csv"),
                                          "--json"], check=True, stdout=subprocess.PIPE).stdout)
        w = read_safetensors(folder / f"run/step-{STEPS:08}/model.safetensors")
    w, y = {k: v.double() for k, v in w.items()}, targets_of(other, targets)
    out = F.relu(x @ w["fc0.weight"].T + w["fc0.bias"]) @ w["fc1.weight"].T + w["fc1.bias"]
    theirs = {"loss": F.cross_entropy(out, y).item() if name == "smoothing" else loss_of(out, y).item(),
              **errors_of(name, out, y)}
    assert ours["samples"] == ROWS and ours.keys() & {"accuracy", "rmse", "mae"} == theirs.keys() - {"loss"}
    differ = largest(abs(ours[k] - b) / abs(b) for k, b in theirs.items())
    print(f"{name:10} eval of another table: loss {theirs['loss']:.6f}   largest relative difference {differ:.2e}")
    return differ


def compare(name, shift):
    target, options, loss_of = CASES[name]
    targets = target.split(",")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        table = make_table(folder / "table.csv")
        x, y = torch.from_numpy(inputs_of(table, targets)), targets_of(table, targets)
        weights = write_weights(folder / "init.safetensors", name, x.shape[1], 3 if name == "smoothing" else len(targets))
        ours = run_lockstep(folder, target, options)
        theirs = run_torch(x, y.roll(1, 0) if shift else y, loss_of, weights)
    assert len(ours) == len(theirs) == STEPS
    differ = largest(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    print(f"{name:10} loss {theirs[0]:.6f} -> {theirs[-1]:.6f}   largest relative difference {differ:.2e}")
    return differ


def main():
    torch.set_num_threads(1)
    assert math.isnan(largest([0.0, math.nan, 1.0]))  # a loss that is no number must fail
    worst = largest([*(compare(name, False) for name in CASES), *(evaluate(name) for name in CASES)])
    least = min(compare(name, True) for name in CASES)  # another row's target must show
    print(f"worst {worst:.2e}, limit {LIMIT:.0e}; shifted by a row at least {least:.2e}")
    return not (worst <= LIMIT < least)


if __name__ == "__main__":
    sys.exit(main())
