#!/usr/bin/env python3
"""torchvision_resnet.py -- ResNet-50 against torchvision's.

Makes a model of torchvision with random weights and statistics, writes its state_dict as safetensors,
and lets `lockstep` take a step of plain SGD with a rate of 1 from it: the loss, and the differences of
all weights, are the loss and the gradients.  The gradient of the head's bias is the mean of
softmax(logits) minus the classes, so logits are compared, too.  torchvision computes in FP64.
Differences of gradients are in parts of the largest.  Then torchvision loads the checkpoint with its
running statistics, which must be its own, and its loss in evaluation must be lockstep's.

    tests/parity/torchvision_resnet.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where torchvision is absent.
"""
import copy, json, pathlib, subprocess, sys, tempfile

import parity

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    import torchvision
except ImportError as missing:
    print(f"skipped: {missing} (pip install torchvision)")
    sys.exit(77)

CLASSES, MICRO, BATCH, COUNT, HELD_OUT, LIMIT = 3, 2, 4, 6, 2, 1e-5
SHIFT = 6  # of norms, in both directions: ReLU's inputs are not near 0, where rounding decides on a gradient


def write_state_dict(path, model):
    """Writes all tensors, the numbers of batches included."""
    arrays = {k: v.numpy() for k, v in model.state_dict().items()}
    header, at = {}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": {"float32": "F32", "int64": "I64"}[str(a.dtype)], "shape": a.shape,
                        "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))


def make_model():
    torch.manual_seed(1)
    model = torchvision.models.resnet50(num_classes=CLASSES)
    for key, value in model.state_dict().items():
        noise = torch.randn(value.shape)
        if key.endswith("running_mean"):
            value.copy_(0.1 * noise)
        elif key.endswith("running_var") or ("bn" in key or "downsample.1" in key) and key.endswith("weight"):
            value.copy_(1 + 0.1 * noise)
        elif ("bn" in key or "downsample.1" in key) and key.endswith("bias"):
            value.copy_(SHIFT * noise.sign())
    return model


def run_lockstep(folder):
    log = folder / "run.jsonl"
    subprocess.run([parity.COMMAND, "train", "resnet", "--depth", "50", "--data", f"npy:{folder}/x.npy,{folder}/y.npy",
                    "--init", str(folder / "init.safetensors"), "--validation", "0.34", "--global-batch", str(BATCH),
                    "--micro-batch", str(MICRO), "--steps", "1", "--seed", str(parity.SEED), "--optimizer", "sgd",
                    "--lr", "1", "--momentum", "0", "--log", str(log), "--checkpoint", str(folder / "run"), "--quiet"],
                   check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return ([line["loss"] for line in lines if "loss" in line],
            [line["val_loss"] for line in lines if "val_loss" in line])


def mean_of(models, read):
    """Returns the mean over models, as lockstep's over its virtual workers."""
    with torch.no_grad():
        return sum(read(m) for m in models) / len(models)


def take_step(model, x, y):
    """Returns the loss, and gives `model` the weights and statistics after a step with rate 1."""
    parts = [copy.deepcopy(model) for _ in range(BATCH // MICRO)]
    total = 0.0
    for i, part in enumerate(parts):
        rows = slice(i * MICRO, (i + 1) * MICRO)
        loss = F.cross_entropy(part(x[rows]), y[rows])
        loss.backward()
        total += float(loss.detach()) / len(parts)
    gradients = {}
    for name, p in model.named_parameters():
        gradients[name] = mean_of(parts, lambda m: m.get_parameter(name).grad)
    for name, b in model.named_buffers():
        if b.is_floating_point():
            b.copy_(mean_of(parts, lambda m: m.get_buffer(name)))
    return total, gradients


def order():
    """Returns the samples of the step and those of the validation part."""
    place = lambda i: parity.sample_at(0, COUNT, i, 0, 5)
    _, batch = parity.batch_of(COUNT - HELD_OUT, BATCH, 0)
    return [place(HELD_OUT + i) for i in batch], [place(i) for i in range(HELD_OUT)]


def compare(folder):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((COUNT, 64, 64, 3)).astype(np.float32), np.arange(COUNT) % CLASSES
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    model = make_model()
    write_state_dict(folder / "init.safetensors", model)
    losses, val_losses = run_lockstep(folder)

    weights = {k: p.detach().clone() for k, p in model.named_parameters()}
    model.double()
    x, y = torch.from_numpy(x).permute(0, 3, 1, 2).double(), torch.from_numpy(y)
    train, held_out = order()
    loss, gradients = take_step(model, x[train], y[train])
    step = folder / "run/step-00000001"
    after, states = parity.read_safetensors(step / "model.safetensors"), parity.read_safetensors(step / "state.safetensors")
    assert after.keys() == weights.keys(), sorted(after.keys() ^ weights.keys())
    largest = max(float(g.abs().max()) for g in gradients.values())
    apart = parity.largest(float((weights[k] - after[k] - g).abs().max()) for k, g in gradients.items()) / largest
    moved = parity.largest(float((states[k] - b).abs().max() / b.abs().max())
                           for k, b in model.named_buffers() if b.is_floating_point())

    lost = model.load_state_dict(after | states, strict=False)
    assert not lost.unexpected_keys and all(k.endswith("num_batches_tracked") for k in lost.missing_keys), lost
    model.eval()
    with torch.no_grad():
        val_loss = float(F.cross_entropy(model(x[held_out]), y[held_out]))
    differ = [abs(a - b) / abs(b) for a, b in ((losses[0], loss), (val_losses[0], val_loss))]
    print(f"resnet50: loss {loss:.6f}, {differ[0]:.1e} apart; in evaluation {val_loss:.1f}, {differ[1]:.1e}; "
          f"gradients up to {largest:.2f}, {apart:.1e}; statistics {moved:.1e}")
    return parity.largest([*differ, apart, moved])


def main():
    with tempfile.TemporaryDirectory() as folder:
        worst = compare(pathlib.Path(folder))
    print(f"torchvision {torchvision.__version__}: worst {worst:.1e}, limit {LIMIT:.0e}")
    return not worst <= LIMIT


if __name__ == "__main__":
    sys.exit(main())
