"""step.py -- PyTorch's side of bench/step: one model trained as fast as PyTorch can.

    python3 step.py SPECIFICATION          one JSON object, see bench/step

What users of the current version would write for speed: scaled_dot_product_attention, fused
AdamW and SGD, channels_last for convolutions, bf16 by autocast, gradients as views of DDP's
buckets; with "sharded" (of a gpt) FSDP in place of DDP, with "powersgd" powerSGD_hook of that rank.  With "compile": "auto" the model is tried as it is and through torch.compile, and the
faster of the two races.  Batches are made before the clock starts.

Says "ready DESCRIPTION" on stdout when warm; then answers each line "N" on stdin with the seconds
of N steps, and leaves at its end.  Of several ranks, each a process with a line of its own, only
rank 0 speaks.
"""
import contextlib, json, os, sys, time

SPEC = json.loads(sys.argv[1])
os.environ.update(OMP_NUM_THREADS=str(SPEC["threads"]), MKL_NUM_THREADS=str(SPEC["threads"]))

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCHES, WARM_UP, TRIES = 4, 2, 3


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.one, self.two = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2)
                   for p in self.qkv(self.one(x)).split(w, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.two(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, vocabulary):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x):
        x = self.token(x) + self.place(torch.arange(x.shape[1]))
        return F.linear(self.norm(self.layers(x)), self.token.weight)


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, kv_heads, ffn):
        super().__init__()
        self.size, self.kv = width // heads, kv_heads * (width // heads)
        self.one, self.two = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, width + 2 * self.kv, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x, cosine, sine):
        b, t, w = x.shape
        q, k, v = (p.view(b, t, -1, self.size).transpose(1, 2)
                   for p in self.qkv(self.one(x)).split((w, self.kv, self.kv), 2))
        half = self.size // 2
        q, k = (p * cosine + torch.cat((-p[..., half:], p[..., :half]), 3) * sine for p in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=w != self.kv)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        gate, up = self.gate_up(self.two(x)).chunk(2, 2)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    """Tied head, rotary embeddings, SwiGLU."""

    def __init__(self, layers, width, heads, kv_heads, ffn, context, vocabulary):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv_heads, ffn) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        size  = width // heads
        rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angle = torch.outer(torch.arange(context), rates).repeat(1, 2)
        self.register_buffer("cosine", angle.cos())
        self.register_buffer("sine", angle.sin())
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x):
        x = self.token(x)
        for layer in self.layers:
            x = layer(x, self.cosine, self.sine)
        return F.linear(self.norm(x), self.token.weight)


class Pair(nn.Module):
    """A residual block; `projection`: its shortcut has parameters where the shape changes."""

    def __init__(self, inputs, outputs, stride, projection):
        super().__init__()
        self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.n, self.m = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.stride, self.more, self.short = stride, outputs - inputs, None
        if projection and (stride > 1 or self.more):
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                       nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.m(self.b(F.relu(self.n(self.a(x)))))
        if self.short is not None:
            x = self.short(x)
        elif self.stride > 1 or self.more:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(y + x)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.a = nn.Conv2d(inputs, width, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.n, self.m, self.o = (nn.BatchNorm2d(w) for w in (width, width, 4 * width))
        self.short = None
        if stride > 1 or inputs != 4 * width:
            self.short = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False),
                                       nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.m(self.b(F.relu(self.n(self.a(x))))))
        return F.relu(self.o(self.c(y)) + (x if self.short is None else self.short(x)))


def resnet50(classes):
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
              nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and i == 0 else 1))
            inputs = 256 << stage
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
    return net.to(memory_format=torch.channels_last)


def resnet(depth, classes):
    if depth == 50:
        return resnet50(classes)
    first, stages, blocks = (64, 4, 2) if depth == 18 else (16, 3, (depth - 2) // 6)
    layers = [nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU(True)]
    width = first
    for stage in range(stages):
        for i in range(blocks):
            layers.append(Pair(width, first << stage, 2 if stage and i == 0 else 1, depth == 18))
            width = first << stage
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    return net.to(memory_format=torch.channels_last)


def mlp(widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def build():
    if SPEC["model"] == "gpt":
        return Gpt(SPEC["layers"], SPEC["width"], SPEC["heads"], SPEC["context"],
                   SPEC["vocabulary"])
    if SPEC["model"] == "llama":
        return Llama(SPEC["layers"], SPEC["width"], SPEC["heads"], SPEC["kv_heads"], SPEC["ffn"],
                     SPEC["context"], SPEC["vocabulary"])
    if SPEC["model"] == "resnet":
        return resnet(SPEC["depth"], 10)
    return mlp(SPEC["widths"])


def batch():
    """Returns one rank's inputs and targets."""
    size = SPEC["batch"] // SPEC["ranks"]
    if SPEC["model"] in ("gpt", "llama"):
        return torch.randint(SPEC["vocabulary"], (2, size, SPEC["context"])).unbind()
    y = torch.randint(10, (size,))
    if SPEC["model"] == "mlp":
        return torch.randn(size, SPEC["widths"][0]), y
    side = SPEC.get("side", 32)
    return torch.randn(size, 3, side, side).to(memory_format=torch.channels_last), y


def shard(net):
    """Applies FSDP to each layer, and to the rest."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SPEC["ranks"],))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)


def compress(net, rank):
    """Has gradients sent as factors of low rank, from the second step on."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    state = power.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    net.register_comm_hook(state, power.powerSGD_hook)


class Trainer:
    def __init__(self, compiled):
        torch.manual_seed(1)
        net = build()
        if SPEC.get("sharded"):
            shard(net)
        self.parameters = list(net.parameters())
        if SPEC["ranks"] > 1 and not SPEC.get("sharded"):
            # with several buckets over Gloo, powerSGD_hook's messages can meet in another order
            caps = {"bucket_cap_mb": 1024} if SPEC.get("powersgd") else {}
            net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, **caps)
        if SPEC.get("powersgd"):
            compress(net, SPEC["powersgd"])
        self.net = torch.compile(net) if compiled else net
        rule = torch.optim.AdamW if SPEC["optimizer"] == "adamw" else torch.optim.SGD
        how = {} if rule is torch.optim.AdamW else {"momentum": SPEC.get("momentum", 0)}
        self.rule = rule(self.parameters, lr=1e-3, weight_decay=SPEC.get("decay", 0), fused=True,
                         **how)
        self.batches = [batch() for _ in range(BATCHES)]
        self.half = SPEC["precision"] == "bf16"

    def step(self, i):
        x, y = self.batches[i % BATCHES]
        self.rule.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if self.half else contextlib.nullcontext():
            loss = F.cross_entropy(self.net(x).flatten(0, -2), y.flatten())
        loss.backward()
        if SPEC.get("clip"):
            nn.utils.clip_grad_norm_(self.parameters, SPEC["clip"])
        self.rule.step()
        return loss.item()

    def time(self, steps):
        began = time.perf_counter()
        for i in range(steps):
            self.step(i)
        return time.perf_counter() - began


def agreed(seconds):
    """Returns the sum of all ranks' times, so that all choose alike."""
    if SPEC["ranks"] == 1:
        return seconds
    sums = torch.tensor([seconds], dtype=torch.float64)
    torch.distributed.all_reduce(sums)
    return sums.item()


def fastest():
    best, name = None, ""
    for compiled in {"auto": (False, True), "always": (True,), "never": (False,)}[SPEC["compile"]]:
        trainer = Trainer(compiled)
        trainer.time(WARM_UP)
        took = min(agreed(trainer.time(1)) for _ in range(TRIES))
        if best is None or took < best[0]:
            best, name = (took, trainer), "compiled" if compiled else "eager"
    return best[1], name


def main():
    torch.set_num_threads(SPEC["threads"])
    if SPEC["ranks"] > 1:
        torch.distributed.init_process_group("gloo", init_method="file://" + SPEC["store"],
                                             rank=SPEC["rank"], world_size=SPEC["ranks"])
    trainer, name = fastest()
    blas = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    say = print if SPEC["rank"] == 0 else lambda *words, **how: None
    say(f"ready PyTorch {torch.__version__} ({blas}), {name}", flush=True)
    for line in sys.stdin:
        say(trainer.time(int(line)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads may outlive the interpreter


if __name__ == "__main__":
    main()
