#!/usr/bin/env python3
"""hugging_face.py -- gpt and llama against Hugging Face's transformers: logits, losses, gradients.

Makes small models of transformers with random weights, and saves them as folders.  The logits of a
folder must be within 1e-5 of PyTorch's (tests/parity/logits.c).  `lockstep train --init FOLDER` takes
a step of plain SGD with a rate of 1: the loss, and the differences of all weights, are the loss and
the gradients, and must be as near.  `lockstep export` writes the run with a configuration of its own,
transformers loads it again, and its next loss must be that of the next step.  Where nothing is trained,
the export is the folder, byte for byte: with a learning rate of 0 for all parameters, in FP32, in BF16
with norms in FP32 and, from shards, in BF16 and in FP16 with norms in FP32.  FP16 is read exactly, and
BF16 written as PyTorch rounds.

    tests/parity/hugging_face.py [COMMAND]      default: build/release/bin/lockstep
Exits 77 with a message where transformers is absent.
"""
import json, pathlib, shutil, subprocess, sys, tempfile

import parity

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    import safetensors
    import transformers
except ImportError as missing:
    print(f"skipped: {missing} (pip install transformers)")
    sys.exit(77)

CONTEXT, BATCH, LIMIT = 40, 4, 1e-5
SIZES = dict(vocab_size=256, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
             num_attention_heads=4, max_position_embeddings=128)
LOGITS = pathlib.Path(parity.COMMAND).resolve().parents[1] / "tests/parity_logits"
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
    config = transformers.GPT2Config(vocab_size=256, n_positions=CONTEXT + 24, n_embd=48, n_layer=2, n_head=4,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                     bos_token_id=None, eos_token_id=None)
    return transformers.GPT2LMHeadModel(config)


MODELS = {
    "llama": lambda: llama(False, 2),
    "llama3": lambda: llama(True, 4, LLAMA3),
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gpt2": gpt2,
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


def run_lockstep(folder, init, *options):
    log = folder / "run.jsonl"
    model = "gpt" if "GPT2" in (init / "config.json").read_text() else "llama"
    subprocess.run([parity.COMMAND, "train", model, "--data", f"text:{folder}/text", "--init", str(init),
                    "--context", str(CONTEXT), "--global-batch", str(BATCH), "--micro-batch", "2",
                    "--seed", str(parity.SEED), "--optimizer", "sgd", "--lr", "1", "--momentum", "0",
                    "--log", str(log), "--worker-mode", "threads", "--workers", "1",
                    "--checkpoint", str(folder / "run"), "--quiet", *options],
                   check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def export(folder, run, *options):
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    subprocess.run([parity.COMMAND, "export", str(run), "--out", str(out), *options], check=True,
                   stdout=subprocess.DEVNULL)
    return out


def far_apart(a, b):
    return float((a - b).abs().max())


def compare_logits(model, *folders, text):
    """Returns how far logits of the first sample are apart."""
    tokens = text[:CONTEXT]
    raw = subprocess.run([LOGITS, *map(str, folders)], input=tokens.to(torch.int32).numpy().tobytes(), check=True,
                         stdout=subprocess.PIPE).stdout
    logits = torch.from_numpy(np.frombuffer(raw, np.float32).reshape(CONTEXT, -1).copy())
    return far_apart(logits, model(tokens[None]).logits[0].detach())


def compare(name, folder):
    model = MODELS[name]()
    model.eval()
    randomise(model)
    prefix = prefix_of(model)
    weights = {k.removeprefix(prefix): p.detach().clone() for k, p in model.named_parameters()}
    model.save_pretrained(folder / "init")
    text = bytes(np.random.default_rng(5).integers(97, 117, 30 * CONTEXT).astype(np.uint8))
    (folder / "text").write_bytes(text)
    text = torch.tensor(list(text))
    logits = compare_logits(model, folder / "init", text=text)
    ours = run_lockstep(folder, folder / "init", "--steps", "2", "--checkpoint-every", "1", "--keep", "2")
    loss = loss_of(model, text, 0)
    loss.backward()
    after = parity.read_safetensors(folder / "run/step-00000001/model.safetensors")
    gradients = {k.removeprefix(prefix): p.grad for k, p in model.named_parameters()}
    assert after.keys() == weights.keys(), sorted(after.keys() ^ weights.keys())
    worst = parity.largest(far_apart(weights[k] - after[k], g) for k, g in gradients.items())
    largest = max(float(g.abs().max()) for g in gradients.values())
    (folder / "run/config.json").unlink()  # so the export writes its own
    again = transformers.AutoModelForCausalLM.from_pretrained(export(folder, folder / "run/step-00000001"))
    assert type(again) is type(model) and again.dtype == torch.float32
    losses = [float(loss.detach()), float(loss_of(again.eval(), text, 1).detach())]
    differ = parity.largest(abs(a - b) for a, b in zip(ours, losses))
    logits = parity.largest([logits, compare_logits(again, folder / "out", text=text)])
    print(f"{name:7} losses {losses[0]:.6f} {losses[1]:.6f}: {differ:.1e} apart; logits: {logits:.1e} "
          f"apart; gradients up to {largest:.3f}: {worst:.1e} apart")
    return parity.largest([worst, differ, logits])


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def values_of(folder):
    """Returns the bytes of all tensors."""
    out = {}
    for path in folder.glob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            out.update({k: file.get_tensor(k) for k in file.keys()})
    return {k: (v.dtype, v.shape, v.view(torch.uint8).numpy().tobytes()) for k, v in out.items()}


def check_round_trip(name, folder, dtype, norms, shards):
    """Checks that a model of which nothing is trained comes back as it was, with the types of its tensors."""
    model = MODELS[name]().to(dtype)
    for part, module in model.named_modules():
        if "norm" in part:
            module.to(norms)
    randomise(model)
    model.save_pretrained(folder / "init", max_shard_size="20KB" if shards else "5GB")
    (folder / "text").write_bytes(bytes(range(97, 117)) * 200)
    run_lockstep(folder, folder / "init", "--steps", "1", "--param-group", "*:lr=0")
    if shards:
        before, after = values_of(folder / "init"), values_of(export(folder, folder / "run"))
        assert after == before and len(list(folder.glob("init/*.safetensors"))) > 2
        assert len(list(folder.glob("out/*.safetensors"))) == 1
        assert values_of(export(folder, folder / "run", "--shard-size", "0.02")) == before
        assert len(list(folder.glob("out/*.safetensors"))) > 2
        transformers.AutoModelForCausalLM.from_pretrained(folder / "out")
    else:
        before, after = files_of(folder / "init"), files_of(export(folder, folder / "run"))
        assert after == before, [k for k in before | after if before.get(k) != after.get(k)]


def check_halves(folder):
    """Checks that FP16 values, subnormal ones included, are read exactly, and rounded as PyTorch does."""
    model = llama(False, 2).to(torch.float16)
    randomise(model)
    with torch.no_grad():
        model.model.embed_tokens.weight[:9] *= 2.0 ** -20
    model.save_pretrained(folder / "init")
    (folder / "text").write_bytes(bytes(range(97, 117)) * 200)
    run_lockstep(folder, folder / "init", "--steps", "1", "--param-group", "*:lr=0")
    read = parity.read_safetensors(folder / "run/step-00000001/model.safetensors")
    assert all(torch.equal(read[k], p.float()) for k, p in model.named_parameters())
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        again = transformers.AutoModelForCausalLM.from_pretrained(
            export(folder, folder / "run", "--dtype", name), dtype="auto")
        assert again.dtype == dtype
        assert all(torch.equal(p, read[k].to(dtype)) for k, p in again.named_parameters())


def main():
    worst = 0.0
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            worst = parity.largest([worst, compare(name, pathlib.Path(folder))])
    for name, dtype, norms, shards in (("gpt2", torch.float32, torch.float32, False),
                                       ("llama", torch.bfloat16, torch.float32, False),
                                       ("qwen3", torch.bfloat16, torch.bfloat16, True),
                                       ("qwen3", torch.float16, torch.float32, True)):
        with tempfile.TemporaryDirectory() as folder:
            check_round_trip(name, pathlib.Path(folder), dtype, norms, shards)
    with tempfile.TemporaryDirectory() as folder:
        check_halves(pathlib.Path(folder))
    print(f"transformers {transformers.__version__}: worst {worst:.1e}, limit {LIMIT:.0e}")
    return not worst <= LIMIT


if __name__ == "__main__":
    sys.exit(main())
