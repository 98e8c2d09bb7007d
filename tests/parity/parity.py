#!/usr/bin/env python3
"""parity.py -- the three models against PyTorch: same weights, same batches, same losses.

For each model and optimizer: makes initial weights (safetensors) and data, trains `lockstep` for 20
steps from them, trains the same in PyTorch on one thread, and compares the losses step by step
(largest relative difference, limit 1e-4); with groups of parameters, gradients clipped by value and a
moving mean of the weights also that mean.  The order of samples and the text windows are computed
here from their definitions alone (docs/data.md), so a mistake in either shows as well.

    tests/parity/parity.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where PyTorch is absent.
"""
import json, pathlib, struct, subprocess, sys, tempfile

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing} (Debian: python3-torch python3-numpy)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/bin/lockstep")
STEPS, SEED, LIMIT = 20, 7, 1e-4
torch.set_num_threads(1)


# ---- The order of an epoch, from its definition ---------------------------------------------

def philox(seed, purpose, a, b, c, d):
    x = [a, b, c, purpose << 24 | d]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(p1 >> 32) ^ x[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ x[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return x


def sample_at(epoch, n, position, seed=SEED, purpose=3):
    bits = (n - 1).bit_length() if n > 1 else 0
    half = 1 if bits <= 2 else (bits + 1) // 2
    mask, at = (1 << half) - 1, position
    while True:
        left, right = at >> half, at & mask
        for r in range(8):
            left, right = right, (left ^ philox(seed, purpose, right, epoch, 0, half << 8 | r)[0]) & mask
        at = left << half | right
        if at < n:
            return at


def batch_of(n, size, step):
    per_epoch = (n + size - 1) // size
    epoch, first = step // per_epoch, step % per_epoch * size
    return epoch, [sample_at(epoch, n, p) for p in range(first, min(n, first + size))]


def window_offset(epoch, context):
    word = philox(SEED, 4, epoch, 0, 0, 0)
    return (word[1] << 32 | word[0]) % context


# ---- The models ------------------------------------------------------------------------------

def gpt_loss(w, tokens, targets, layers=2, heads=4):
    width = w["wte.weight"].shape[1]
    x = w["wte.weight"][tokens] + w["wpe.weight"][: tokens.shape[1]]
    norm = lambda x, name: F.layer_norm(x, (width,), w[name + ".weight"], w[name + ".bias"], 1e-5)
    line = lambda x, name: x @ w[name + ".weight"] + w[name + ".bias"]
    split = lambda x: x.view(x.shape[0], x.shape[1], heads, width // heads).transpose(1, 2)
    mask = torch.triu(torch.full((tokens.shape[1],) * 2, float("-inf")), 1)
    for i in range(layers):
        q, k, v = map(split, line(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(width, 2))
        a = torch.softmax(q @ k.transpose(2, 3) / (width // heads) ** 0.5 + mask, -1) @ v
        x = x + line(a.transpose(1, 2).reshape(x.shape), f"h.{i}.attn.c_proj")
        u = line(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        u = 0.5 * u * (1 + torch.tanh((2 / np.pi) ** 0.5 * (u + 0.044715 * u ** 3)))
        x = x + line(u, f"h.{i}.mlp.c_proj")
    logits = norm(x, "ln_f") @ w["wte.weight"].T
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1), reduction="sum")


def mlp_loss(w, x, y):
    x = x.reshape(len(x), -1)
    for i in range(3):
        x = x @ w[f"fc{i}.weight"].T + w[f"fc{i}.bias"]
        x = F.relu(x) if i < 2 else x
    return F.cross_entropy(x, y, reduction="sum")


def resnet_loss(w, x, y):
    conv = lambda x, name, stride: F.conv2d(x, w[name + ".weight"], stride=stride,
                                            padding=w[name + ".weight"].shape[2] // 2)
    norm = lambda x, name: F.batch_norm(x, None, None, w[name + ".weight"], w[name + ".bias"], True)
    x = F.relu(norm(conv(x.permute(0, 3, 1, 2), "conv1", 1), "bn1"))
    for stage in range(3):
        name, stride = f"layer{stage + 1}.0", 2 if stage else 1
        h = F.relu(norm(conv(x, name + ".conv1", stride), name + ".bn1"))
        h = norm(conv(h, name + ".conv2", 1), name + ".bn2")
        if stage:
            extra = h.shape[1] - x.shape[1]
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, extra))
        x = F.relu(h + x)
    x = x.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]
    return F.cross_entropy(x, y, reduction="sum")


def shapes_of(model):
    if model == "gpt":
        c, out = 32, {"wte.weight": (256, 32), "wpe.weight": (24, 32)}
        for i in range(2):
            for name, a, b in (("attn.c_attn", c, 3 * c), ("attn.c_proj", c, c),
                               ("mlp.c_fc", c, 4 * c), ("mlp.c_proj", 4 * c, c)):
                out |= {f"h.{i}.{name}.weight": (a, b), f"h.{i}.{name}.bias": (b,)}
            for name in ("ln_1", "ln_2"):
                out |= {f"h.{i}.{name}.weight": (c,), f"h.{i}.{name}.bias": (c,)}
        return out | {"ln_f.weight": (c,), "ln_f.bias": (c,)}
    if model == "mlp":
        sizes = (75, 40, 24, 4)
        return {k: v for i in range(3) for k, v in ((f"fc{i}.weight", (sizes[i + 1], sizes[i])),
                                                   (f"fc{i}.bias", (sizes[i + 1],)))}
    out = {"conv1.weight": (16, 3, 3, 3), "bn1.weight": (16,), "bn1.bias": (16,)}
    for s, (a, b) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
        out |= {f"layer{s}.0.conv1.weight": (b, a, 3, 3), f"layer{s}.0.conv2.weight": (b, b, 3, 3)}
        for n in (1, 2):
            out |= {f"layer{s}.0.bn{n}.weight": (b,), f"layer{s}.0.bn{n}.bias": (b,)}
    return out | {"fc.weight": (4, 64), "fc.bias": (4,)}


def initial(model):
    rng, out = np.random.default_rng(3), {}
    for name, shape in shapes_of(model).items():
        fan = np.prod(shape[1:]) if len(shape) > 1 else 1
        norm = ".bn" in name or ".ln_" in name or name.startswith(("bn", "ln"))
        if norm and name.endswith("weight"):
            out[name] = 1 + 0.1 * rng.standard_normal(shape)
        elif len(shape) == 1:
            out[name] = 0.1 * rng.standard_normal(shape)
        else:
            out[name] = rng.standard_normal(shape) * (0.1 if model == "gpt" else (2 / fan) ** 0.5)
        out[name] = out[name].astype(np.float32)
    return out


def write_safetensors(path, arrays):
    header, at = {}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": "F32", "shape": a.shape, "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))


def read_safetensors(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, out = json.loads(raw[8:8 + size]), {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(raw[8 + size + begin:8 + size + end], np.float32)
            out[name] = torch.from_numpy(values.reshape(entry["shape"]).copy())
    return out


# ---- Comparing -------------------------------------------------------------------------------

def largest(values):
    """Returns the largest value, or NaN if there is one: max() leaves NaN out."""
    return float(np.max([*values]))


# ---- Both sides ------------------------------------------------------------------------------

BATCH, MICRO, COUNT = 12, 3, 101  # 101 samples: every ninth step is a short batch


def make_data(model, folder):
    rng = np.random.default_rng(5)
    if model == "gpt":
        text = bytes(rng.integers(97, 117, 24 * COUNT + 30).astype(np.uint8))
        (folder / "text").write_bytes(text)
        tokens = np.frombuffer(text, np.uint8).astype(np.int64)
        n = (len(tokens) - 24) // 24

        def read(epoch, sample):
            at = window_offset(epoch, 24) + 24 * sample
            return tokens[at:at + 24], tokens[at + 1:at + 25]
        return f"text:{folder}/text", n, read
    x = rng.standard_normal((COUNT, 9, 9, 3) if model == "resnet" else (COUNT, 75)).astype(np.float32)
    y = rng.integers(0, 4, COUNT)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return f"npy:{folder}/x.npy,{folder}/y.npy", COUNT, lambda epoch, i: (x[i], y[i])


CLIP, MEAN = 0.01, 0.9  # of "groups"

# AdamW divides a gradient by its size: one of the ResNet's is so near to zero that the order in which
# convolutions are summed decides its sign (PyTorch's own two ways differ by 7e-3 in the loss with 1e-8).
EPS = {"mlp": 1e-8, "gpt": 1e-8, "resnet": 1e-5}


def torch_optimizer(model, optimizer, w):
    biases = [p for k, p in w.items() if k.endswith("bias")]
    decay = [p for p in w.values() if p.dim() > 1]
    if optimizer == "groups":
        norms = [p for k, p in w.items() if p.dim() <= 1 and not k.endswith("bias")]
        groups = [{"params": decay}, {"params": norms, "weight_decay": 0},
                  {"params": biases, "lr": 0.1, "weight_decay": 0.05}]
    else:
        groups = [{"params": decay}, {"params": [p for p in w.values() if p.dim() <= 1], "weight_decay": 0}]
    if optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.99), eps=EPS[model],
                                 weight_decay=0.1)
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)


def run_torch(model, optimizer, n, read, weights):
    w = {k: torch.nn.Parameter(torch.from_numpy(v.copy())) for k, v in weights.items()}
    means = None
    loss_of = {"gpt": gpt_loss, "mlp": mlp_loss, "resnet": resnet_loss}[model]
    opt = torch_optimizer(model, optimizer, w)
    losses = []
    for step in range(STEPS):
        epoch, batch = batch_of(n, BATCH, step)
        total, count = 0.0, 0
        opt.zero_grad()
        for at in range(0, len(batch), MICRO):  # micro-batches: BatchNorm sees one at a time
            pairs = [read(epoch, i) for i in batch[at:at + MICRO]]
            x = torch.from_numpy(np.stack([p[0] for p in pairs]))
            y = torch.from_numpy(np.stack([p[1] for p in pairs]))
            loss = loss_of(w, x, y)
            loss.backward()
            total, count = total + float(loss.detach().double()), count + y.numel()
        for p in w.values():
            p.grad /= count
        if optimizer == "groups":
            torch.nn.utils.clip_grad_value_(w.values(), CLIP)
        opt.step()
        with torch.no_grad():
            means = {k: p.clone() if means is None else means[k].lerp_(p, 1 - MEAN) for k, p in w.items()}
        losses.append(total / count)
    return losses, means


def run_lockstep(model, optimizer, spec, folder, workers):
    log = folder / "run.jsonl"
    args = [COMMAND, "train", model, "--data", spec, "--init", str(folder / "init.safetensors"),
            "--global-batch", str(BATCH), "--micro-batch", str(MICRO), "--virtual-workers", "2",
            "--workers", str(workers), "--steps", str(STEPS), "--seed", str(SEED), "--log", str(log), "--quiet"]
    args += {"gpt": ["--layers", "2", "--heads", "4", "--width", "32", "--context", "24"],
             "mlp": ["--hidden", "40,24"], "resnet": ["--depth", "8"]}[model]
    args += (["--optimizer", "sgd", "--lr", "0.05", "--momentum", "0.9", "--nesterov", "--weight-decay", "0.01"]
             if optimizer != "adamw" else
             ["--optimizer", "adamw", "--lr", "2e-3", "--betas", "0.9,0.99", "--weight-decay", "0.1",
              "--eps", str(EPS[model])])
    if optimizer == "groups":
        args += ["--param-group", "*bias:lr=2,decay=0.05", "--clip-value", str(CLIP), "--ema", str(MEAN),
                 "--checkpoint", str(folder / "run")]
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def mean_difference(folder, means):
    """Returns the largest |a - b| over the largest |b| of all tensors."""
    ours = read_safetensors(folder / f"run/step-{STEPS:08}/optimizer.safetensors")
    return largest((ours[name + ".ema"] - theirs).abs().max() / theirs.abs().max() for name, theirs in means.items())


def main():
    worst = 0.0
    for model in ("mlp", "gpt", "resnet"):
        for optimizer in ("sgd", "adamw", "groups"):
            with tempfile.TemporaryDirectory() as name:
                folder = pathlib.Path(name)
                weights = initial(model)
                write_safetensors(folder / "init.safetensors", weights)
                spec, n, read = make_data(model, folder)
                ours = run_lockstep(model, optimizer, spec, folder, 2)
                theirs, means = run_torch(model, optimizer, n, read, weights)
                of_means = mean_difference(folder, means) if optimizer == "groups" else 0.0
            assert len(ours) == len(theirs) == STEPS
            differ = largest(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
            worst = largest([worst, differ, of_means])
            print(f"{model:7} {optimizer:6} loss {theirs[0]:.6f} -> {theirs[-1]:.6f}   "
                  f"largest relative difference {differ:.2e}" + (f", of means {of_means:.2e}" if of_means else ""))
    print(f"PyTorch {torch.__version__}: worst {worst:.2e}, limit {LIMIT:.0e}")
    return not worst <= LIMIT


if __name__ == "__main__":
    sys.exit(main())
