"""A ResNet with BatchNorm on small pictures, on any number of workers with the same bits.

    lockstep run -n 2 -- python resnet.py
    python resnet.py --pictures DIR          # torchvision's CIFAR-10, if torchvision is installed

Running statistics, random crops and flips, and SGD with a warmup do not depend on the number of
workers either.
"""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn

import lockstep.torch as lk


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.skip = nn.Sequential()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False),
                                      nn.BatchNorm2d(after))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def resnet(classes=10, width=16, depth=2):
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage in range(3):
        for i in range(depth):
            before = width if i else max(width // 2, width if stage == 0 else 0)
            layers.append(Residual(before, width, 2 if stage and i == 0 else 1))
        width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(width // 2, classes))


class Stripes(torch.utils.data.Dataset):
    """Noisy pictures of stripes in ten directions, cropped and flipped at random."""

    def __len__(self):
        return 2000

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        label = i % 10
        y, x = torch.meshgrid(torch.arange(36.0), torch.arange(36.0), indexing="ij")
        angle = torch.tensor(label * torch.pi / 10)
        waves = torch.sin((x * torch.cos(angle) + y * torch.sin(angle)) / 2)
        picture = waves.expand(3, 36, 36) + torch.randn(3, 36, 36, generator=generator)
        top, left = random.randrange(4), random.randrange(4)   # seeded by epoch and index
        return picture[:, top:top + 32, left:left + 32], label


def cifar10(folder):
    from torchvision import datasets, transforms
    return datasets.CIFAR10(folder, transform=transforms.Compose([
        transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]))


def loss_sum(model, batch):
    pictures, labels = batch
    logits = model(pictures)
    hits = int((logits.argmax(1) == labels).sum())
    return F.cross_entropy(logits, labels, reduction="sum"), labels.numel(), hits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", help="the folder of torchvision's CIFAR-10")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()

    run = lk.init(seed=1, virtual_workers=4)
    model = run.prepare(resnet())
    opt = lk.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
    pictures = cifar10(args.pictures) if args.pictures else Stripes()
    data = run.loader(pictures, global_batch=64, num_workers=1)
    for step in run.steps(args.steps):
        result = run.step(loss_sum, data, opt)
        sched.step()
        if step % 10 == 9:
            run.print(f"step {step + 1}  loss {result.loss:.4f}  accuracy {result.accuracy:.3f}")
    run.print("evaluation:", run.evaluate(loss_sum, torch.utils.data.Subset(pictures, range(500))))
    run.print("weights", run.weights_hash())


if __name__ == "__main__":
    main()
