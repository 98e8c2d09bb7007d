"""Eight models with synthetic data, for tests and benchmarks.

Each function returns (module, dataset, loss_sum).  The data set is the same in every process.  The
parameters are drawn from torch's global generator, which ``lockstep.torch.init()`` seeds.  Sizes
are arguments: the defaults are for tests, and benchmarks give larger ones.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES = 48   # of every data set, unless an argument says otherwise


class Missing(Exception):
    """A model needs a package, or a limit of the library, that is not there."""


def _generator():
    return torch.Generator().manual_seed(20)


def _pictures(samples, classes, *shape):
    generator = _generator()
    return TensorDataset(torch.randn(samples, *shape, generator=generator),
                         torch.randint(classes, (samples,), generator=generator))


def _words(samples, length, words):
    """Texts in which a word depends on the word before it."""
    generator = _generator()
    text = torch.randint(words, (samples, length + 1), generator=generator)
    for i in range(1, length + 1, 2):
        text[:, i] = (text[:, i - 1] * 3 + 1) % words
    return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def _class_loss(model, batch):
    x, y = batch
    out = model(x)
    hits = int((out.argmax(-1) == y).sum())
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="sum"), y.numel(), hits


# ---- MLP, CNN, LSTM ----------------------------------------------------------------------------


def mlp(inputs=20, width=32, depth=2, classes=4, samples=SAMPLES):
    """Linear layers with GELU and dropout."""
    layers, last = [], inputs
    for _ in range(depth):
        layers += [nn.Linear(last, width), nn.GELU(), nn.Dropout(0.1)]
        last = width
    return (nn.Sequential(*layers, nn.Linear(last, classes)),
            _pictures(samples, classes, inputs), _class_loss)


class _Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                   nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def cnn(width=8, stages=2, size=8, classes=4, samples=SAMPLES):
    """A small ResNet: convolutions and BatchNorm with running statistics."""
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(stages):
        inputs = width * 2 ** max(0, stage - 1)
        layers.append(_Residual(inputs, width * 2 ** stage, 1 if stage == 0 else 2))
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(),
               nn.Linear(width * 2 ** (stages - 1), classes)]
    return nn.Sequential(*layers), _pictures(samples, classes, 3, size, size), _class_loss


class _LSTM(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


def lstm(words=24, width=16, layers=2, length=6, samples=SAMPLES):
    """Two LSTM layers with dropout between them."""
    return _LSTM(words, width, layers), _words(samples, length, words), _class_loss


# ---- Transformers ------------------------------------------------------------------------------


def _attention(q, k, v, dropout):
    """Causal attention, also before torch 2.0."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return F.dropout(scores.masked_fill(hidden, float("-inf")).softmax(-1), dropout) @ v


class _Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = _attention(q, k, v, 0.1 if self.training else 0.0)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1, self.training)


class _GPT(nn.Module):
    def __init__(self, words, width, layers, heads, length):
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, x):
        h = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def gpt(words=32, width=16, layers=2, heads=2, length=8, samples=SAMPLES):
    """A GPT whose head is its embedding, with dropout in the attention."""
    return (_GPT(words, width, layers, heads, length), _words(samples, length, words),
            _class_loss)


class _ViT(nn.Module):
    def __init__(self, size, patch, width, layers, heads, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True,
                                           norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.encoder(x)[:, 0])


def vit(size=8, patch=4, width=16, layers=2, heads=2, classes=4, samples=SAMPLES):
    """A vision transformer of torch's own encoder layers."""
    return (_ViT(size, patch, width, layers, heads, classes),
            _pictures(samples, classes, 3, size, size), _class_loss)


def bert(words=32, width=16, layers=2, heads=2, length=8, samples=SAMPLES):
    """The BERT of Hugging Face's transformers, with random weights."""
    try:
        from transformers import BertConfig, BertForMaskedLM
    except ImportError:
        raise Missing("needs the package transformers") from None
    config = BertConfig(vocab_size=words, hidden_size=width, num_hidden_layers=layers,
                        num_attention_heads=heads, intermediate_size=4 * width,
                        max_position_embeddings=length)

    def loss_sum(model, batch):
        return _class_loss(lambda x: model(input_ids=x).logits, batch)

    return BertForMaskedLM(config), _words(samples, length, words), loss_sum


# ---- A U-Net, and unused parameters --------------------------------------------------------------


class _UNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.down1 = self._block(1, width)
        self.shrink = nn.Conv3d(width, width, 2, 2)   # a GPU's pooling is not deterministic
        self.down2 = self._block(width, 2 * width)
        self.up = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.last = self._block(2 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    @staticmethod
    def _block(inputs, outputs):
        return nn.Sequential(nn.Conv3d(inputs, outputs, 3, padding=1, bias=False),
                             nn.GroupNorm(2, outputs), nn.ReLU())

    def forward(self, x):
        high = self.down1(x)
        low = self.down2(self.shrink(high))
        return self.head(self.last(torch.cat([high, self.up(low)], 1))).flatten(2).mT


def unet3d(width=4, size=4, classes=3, samples=SAMPLES):
    """A U-Net of volumes, whose weights have five dimensions."""
    from lockstep._library import RANK_MAX
    if RANK_MAX < 5:
        raise Missing(f"the library takes parameters of at most {RANK_MAX} dimensions")
    generator = _generator()
    x = torch.randn(samples, 1, size, size, size, generator=generator)
    y = ((x > -0.5).long() + (x > 0.5).long()).flatten(1)
    return _UNet(width, classes), TensorDataset(x, y), _class_loss


class _Branches(nn.Module):
    """A branch that is used at random, and one that is never used."""

    def __init__(self, inputs, width, classes):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.sometimes = nn.Linear(width, width)
        self.last = nn.Linear(width, classes)
        self.never = nn.Linear(width, width)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if random.random() < 0.2:
            x = x + torch.tanh(self.sometimes(x))
        return self.last(x)


def branches(inputs=10, width=12, classes=3, samples=SAMPLES):
    """A model with parameters that get no gradient, some of them only in some micro-batches."""
    return _Branches(inputs, width, classes), _pictures(samples, classes, inputs), _class_loss


MODELS = {f.__name__: f for f in (mlp, cnn, lstm, gpt, vit, bert, unet3d, branches)}


def available():
    """Return the names of the models that can be made here, and {name: reason} for the others."""
    names, missing = [], {}
    for name, make in MODELS.items():
        try:
            make()
            names.append(name)
        except Missing as reason:
            missing[name] = str(reason)
    return names, missing
