#!/usr/bin/env python3
"""hugging_face.py -- gpt and llama against Hugging Face's transformers: losses and gradients.

Makes small models of transformers with random weights, writes them as safetensors, and lets `lockstep`
take a step of plain SGD with a rate of 1 from them: the loss, and the differences of all weights, are
the loss and the gradients.  Both must be within 1e-5 of PyTorch's.  The checkpoint is then loaded by
transformers again, by name, and the next loss must be that of the next step.

    tests/parity/hugging_face.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where transformers is absent.
"""
import json, pathlib, subprocess, sys, tempfile

import parity

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (pip install transformers)")
    sys.exit(77)

CONTEXT, BATCH, LIMIT = 40, 4, 1e-5
SIZES = dict(vocab_size=256, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=128)
OPTIONS = "--width 48 --ffn 88 --layers 2 --heads 4"
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64, rope_theta=500.0)


def llama(tie, kv_heads, scaling=None):
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=kv_heads, rms_norm_eps=1e-5,
                                      tie_word_embeddings=tie)
    if scaling:
        set_rope(config, scaling)
    return transformers.LlamaForCausalLM(config)


def set_rope(config, rope):
    if hasattr(config, "rope_parameters"):  # transformers 5
        config.rope_parameters = rope
    else:
        config.rope_theta = rope["rope_theta"]
        config.rope_scaling = {k: v for k, v in rope.items() if k != "rope_theta"}


def qwen2():
    config = transformers.Qwen2Config(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-6,
                                      tie_word_embeddings=True)
    set_rope(config, dict(rope_type="default", rope_theta=1e6))
    return transformers.Qwen2ForCausalLM(config)


def qwen3():
    config = transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=20, rms_norm_eps=1e-6,
                                      tie_word_embeddings=False)
    set_rope(config, dict(rope_type="default", rope_theta=1e6))
    return transformers.Qwen3ForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=48, n_layer=2, n_head=4,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    return transformers.GPT2LMHeadModel(config)


MODELS = {
    "llama": (lambda: llama(False, 2), f"llama {OPTIONS} --kv-heads 2"),
    "llama3": (lambda: llama(True, 4, LLAMA3), f"llama {OPTIONS} --tie --rope-theta 500 --rope-factor 8 "
               "--rope-original 64"),
    "qwen2": (qwen2, f"llama {OPTIONS} --kv-heads 2 --tie --qkv-bias --rope-theta 1e6 --norm-eps 1e-6"),
    "qwen3": (qwen3, f"llama {OPTIONS} --kv-heads 1 --head-size 20 --qk-norm --rope-theta 1e6 "
              "--norm-eps 1e-6"),
    "gpt2": (gpt2, "gpt --width 48 --layers 2 --heads 4"),
}


def prefix_of(model):
    """Returns what our names of parameters lack in front."""
    return "transformer." if model.config.model_type == "gpt2" else ""


def loss_of(model, text, step):
    n = (len(text) - CONTEXT) // CONTEXT
    epoch, batch = parity.batch_of(n, BATCH, step)
    at = [parity.window_offset(epoch, CONTEXT) + CONTEXT * i for i in batch]
    x = torch.stack([text[i:i + CONTEXT] for i in at])
    y = torch.stack([text[i + 1:i + CONTEXT + 1] for i in at])
    return F.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())


def randomise(model):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            norm = "norm" in name or "ln_" in name
            p.copy_(1 + 0.1 * noise if norm and name.endswith("weight") else 0.15 * noise)


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


def run_lockstep(options, folder):
    log = folder / "run.jsonl"
    subprocess.run([parity.COMMAND, "train", *options.split(), "--data", f"text:{folder}/text", "--init",
                    str(folder / "init.safetensors"), "--context", str(CONTEXT), "--global-batch", str(BATCH),
                    "--micro-batch", "2", "--steps", "2", "--seed", str(parity.SEED), "--optimizer", "sgd",
                    "--lr", "1", "--momentum", "0", "--log", str(log), "--checkpoint", str(folder / "run"),
                    "--checkpoint-every", "1", "--keep", "2", "--quiet"],
                   check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def compare(name, folder):
    make, options = MODELS[name]
    model = make()
    model.eval()
    randomise(model)
    prefix = prefix_of(model)
    weights = {k.removeprefix(prefix): p.detach().clone() for k, p in model.named_parameters()}
    parity.write_safetensors(folder / "init.safetensors", {k: p.numpy() for k, p in weights.items()})
    text = bytes(np.random.default_rng(5).integers(97, 117, 30 * CONTEXT).astype(np.uint8))
    (folder / "text").write_bytes(text)
    text = torch.tensor(list(text))
    ours = run_lockstep(options, folder)
    loss = loss_of(model, text, 0)
    loss.backward()
    after = read_safetensors(folder / "run/step-00000001/model.safetensors")
    gradients = {k.removeprefix(prefix): p.grad for k, p in model.named_parameters()}
    assert after.keys() == weights.keys(), sorted(after.keys() ^ weights.keys())
    worst = max(float((weights[k] - after[k] - g).abs().max()) for k, g in gradients.items())
    model.load_state_dict({prefix + k: v for k, v in after.items()}, strict=False)
    losses = [float(loss.detach()), float(loss_of(model, text, 1).detach())]
    differ = max(abs(a - b) for a, b in zip(ours, losses))
    largest = max(float(g.abs().max()) for g in gradients.values())
    print(f"{name:7} losses {losses[0]:.6f} {losses[1]:.6f}: {differ:.1e} apart; "
          f"gradients up to {largest:.3f}: {worst:.1e} apart")
    return max(worst, differ)


def main():
    worst = 0.0
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, compare(name, pathlib.Path(folder)))
    print(f"transformers {transformers.__version__}: worst {worst:.1e}, limit {LIMIT:.0e}")
    return worst > LIMIT


if __name__ == "__main__":
    sys.exit(main())
