"""Fine-tuning of a Hugging Face model, on any number of workers with the same bits.

    pip install transformers
    lockstep run -n 2 -- python finetune.py distilbert-base-uncased
    lockstep run -n 2 -- python finetune.py            # random weights, nothing downloaded

The body of the model is frozen but for its last layers, which have a smaller learning rate than the
new head.
"""

import argparse

import torch
from transformers import AutoModelForSequenceClassification, BertConfig
from transformers import BertForSequenceClassification

import lockstep.torch as lk

WORDS = 1000


class Sentences(torch.utils.data.Dataset):
    """Made-up sentences: positive if more tokens are in the upper half of the vocabulary."""

    def __len__(self):
        return 1024

    def __getitem__(self, i):
        tokens = torch.randint(5, WORDS, (32,), generator=torch.Generator().manual_seed(i))
        return tokens, int((tokens >= WORDS // 2).sum() > 16)


def loss_sum(model, batch):
    tokens, labels = batch
    logits = model(input_ids=tokens).logits
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return loss, labels.numel(), int((logits.argmax(1) == labels).sum())


def make(name):
    if name:
        return AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
    return BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model of the hub, or a folder")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()

    run = lk.init(seed=1, virtual_workers=4)
    model = make(args.model)
    for parameter in model.base_model.embeddings.parameters():
        parameter.requires_grad = False
    run.prepare(model)
    body = {id(p) for p in model.base_model.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    opt = lk.AdamW([{"params": [p for p in trained if id(p) in body], "lr": 1e-4},
                    {"params": [p for p in trained if id(p) not in body]}], lr=1e-3,
                   clip_norm=1.0)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.1, total_iters=args.steps)
    data = run.loader(Sentences(), global_batch=32)
    for step in run.steps(args.steps):
        result = run.step(loss_sum, data, opt)
        sched.step()
        if step % 10 == 9:
            run.print(f"step {step + 1}  loss {result.loss:.4f}  accuracy {result.accuracy:.3f}")
    run.print("weights", run.weights_hash())


if __name__ == "__main__":
    main()
