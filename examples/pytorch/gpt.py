"""A small GPT on the characters of a text, on any number of workers with the same bits.

    lockstep run -n 2 -- python gpt.py book.txt
    torchrun --nproc-per-node 3 gpt.py book.txt
    lockstep run -n 3 --on-failure continue -- python gpt.py book.txt     # kill -9 a worker

Without a file it learns a made-up text.  The printed hash is the same each time.
"""

import argparse
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import lockstep.torch as lk

CONTEXT = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT).tril().bool())

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = F.dropout(F.softmax(scores, dim=-1), 0.1, self.training) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + F.dropout(self.mlp(self.norm2(x)), 0.1, self.training)


class GPT(nn.Module):
    def __init__(self, vocabulary, width=128, heads=4, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight   # tied
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


class Windows(torch.utils.data.Dataset):
    """Every window of CONTEXT characters, and the character that follows each of them."""

    def __init__(self, codes):
        self.codes = codes

    def __len__(self):
        return len(self.codes) - CONTEXT

    def __getitem__(self, i):
        piece = self.codes[i:i + CONTEXT + 1]
        return piece[:-1], piece[1:]


def loss_sum(model, batch):
    tokens, targets = batch
    logits = model(tokens)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return loss, targets.numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="?", help="a text file; default: a made-up text")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", help="a directory to save to and to resume from")
    args = parser.parse_args()

    text = pathlib.Path(args.text).read_text() if args.text else "to be or not to be. " * 500
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(c) for c in text])
    cut = len(codes) * 9 // 10

    run = lk.init(seed=1, virtual_workers=8)
    model = run.prepare(GPT(len(letters)))
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    opt = lk.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-3,
                   betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=args.steps)
    data = run.loader(Windows(codes[:cut]), global_batch=32, micro_batch=4)
    if args.checkpoint:
        run.resume(args.checkpoint, model, opt, sched)

    for step in run.steps(args.steps):
        result = run.step(loss_sum, data, opt)
        sched.step()
        if step % 10 == 9:
            run.print(f"step {step + 1}  loss {result.loss:.4f}  {result.seconds * 1000:.0f} ms")
    validation = torch.utils.data.Subset(Windows(codes[cut:]), range(256))
    run.print("validation", run.evaluate(loss_sum, validation))
    if args.checkpoint:
        run.save(args.checkpoint)
    run.print("weights", run.weights_hash())


if __name__ == "__main__":
    main()
