#!/usr/bin/env python3
"""adapters.py -- low-rank adapters of gpt and llama against PEFT: logits, losses and gradients, both ways.

Makes small models of transformers with random weights, and adapters of PEFT with random weights on
them.  Their logits must be within 1e-5 of PyTorch's.  `lockstep train --init MODEL --adapter
ADAPTERS` takes a step of plain SGD with a rate of 1: the loss, and the differences of all weights of
the adapters, are the loss and the gradients, and must be as near.  `lockstep export` writes the
adapters, PeftModel.from_pretrained() loads them again, and its next loss must be that of the next
step.  Where nothing is trained, the tensors come back bit for bit.

    tests/parity/adapters.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where PEFT is absent.
"""
import pathlib, sys, tempfile

import hugging_face
import parity

try:
    import numpy as np
    import peft
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (pip install peft)")
    sys.exit(77)

CASES = {
    "gpt2": dict(r=4, lora_alpha=8, target_modules=["c_attn"]),
    "gpt2 all": dict(r=3, lora_alpha=7, target_modules=["c_attn", "c_fc", "c_proj"]),
    "llama": dict(r=8, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
    "qwen2": dict(r=2, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
    "qwen3": dict(r=5, lora_alpha=9, target_modules=["v_proj", "gate_proj", "up_proj", "down_proj"]),
}


def make(name, folder):
    """Saves a model and adapters of it, and returns both together."""
    base = hugging_face.MODELS[name.split()[0]]()
    hugging_face.randomise(base)
    base.save_pretrained(folder / "init")
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **CASES[name]))
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    model.save_pretrained(folder / "adapters")
    return model.eval()


def tensors_of(path):
    return parity.read_safetensors(path / "adapter_model.safetensors")


def train(name, folder, *options):
    targets = ",".join(CASES[name]["target_modules"])
    return hugging_face.run_lockstep(folder, folder / "init", "--adapter", str(folder / "adapters"),
                                     "--lora-targets", targets, *options)


def compare(name, folder):
    model = make(name, folder)
    text = bytes(np.random.default_rng(5).integers(97, 117, 30 * hugging_face.CONTEXT).astype(np.uint8))
    (folder / "text").write_bytes(text)
    text = torch.tensor(list(text))
    logits = hugging_face.compare_logits(model, folder / "init", folder / "adapters", text=text)
    ours = train(name, folder, "--steps", "2", "--checkpoint-every", "1", "--keep", "2")
    loss = hugging_face.loss_of(model, text, 0)
    loss.backward()
    gradients = {k.replace(".default", ""): p.grad for k, p in model.named_parameters() if "lora_" in k}
    out = hugging_face.export(folder, folder / "run/step-00000001")
    before, after = tensors_of(folder / "adapters"), tensors_of(out)
    assert before.keys() == after.keys() == gradients.keys(), sorted(before.keys() ^ after.keys())
    worst = parity.largest(hugging_face.far_apart(before[k] - after[k], g) for k, g in gradients.items())
    largest = max(float(g.abs().max()) for g in gradients.values())
    base = type(model.get_base_model()).from_pretrained(folder / "init")
    again = peft.PeftModel.from_pretrained(base, out).eval()
    logits = parity.largest([logits, hugging_face.compare_logits(again, folder / "init", out, text=text)])
    losses = [float(loss.detach()), float(hugging_face.loss_of(again, text, 1).detach())]
    differ = parity.largest(abs(a - b) for a, b in zip(ours, losses))
    print(f"{name:8} losses {losses[0]:.6f} {losses[1]:.6f}: {differ:.1e} apart; logits: "
          f"{logits:.1e} apart; gradients up to {largest:.3f}: {worst:.1e} apart")
    return parity.largest([worst, differ, logits])


def check_round_trip(folder):
    """Checks that adapters of which nothing is trained come back as they were."""
    make("qwen2", folder)
    (folder / "text").write_bytes(bytes(range(97, 117)) * 200)
    train("qwen2", folder, "--steps", "1", "--param-group", "*:lr=0")
    before, after = tensors_of(folder / "adapters"), tensors_of(hugging_face.export(folder, folder / "run"))
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


def main():
    worst = 0.0
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            worst = parity.largest([worst, compare(name, pathlib.Path(folder))])
    with tempfile.TemporaryDirectory() as folder:
        check_round_trip(pathlib.Path(folder))
    print(f"PEFT {peft.__version__}, transformers {transformers.__version__}: worst {worst:.1e}, limit "
          f"{hugging_face.LIMIT:.0e}")
    return not worst <= hugging_face.LIMIT


if __name__ == "__main__":
    sys.exit(main())
