"""lockstep tokenize against the package tokenizers, if this Python has it; needs no torch."""
import array
import importlib.util
import os
import pathlib
import random
import subprocess
import sys
import tempfile

if importlib.util.find_spec("tokenizers") is None:
    print("skipped: this python3 has no package tokenizers")
    sys.exit(77)
from tokenizers import Tokenizer

SOURCE = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ["LOCKSTEP_BUILD"]) / "bin/lockstep"


def make_text(chance, characters):
    """Characters of all of Unicode, of one block at a time, and marks beside letters."""
    parts = []
    for _ in range(characters // 20):
        block = chance.randrange(0x110000) & ~0x7f if chance.random() < 0.3 else \
            chance.choice((0, 0x80, 0x300, 0x400, 0x900, 0x1100, 0x1e00, 0x2000, 0x3000, 0xac00))
        points = [block + chance.randrange(128) for _ in range(16)]
        points += chance.choices((32, 10, 13, 9, 39, 0x301, 0x323, 0x3000), k=4)
        chance.shuffle(points)
        parts += [chr(c) for c in points if not 0xd800 <= c < 0xe000]
    return "".join(parts)


def main():
    text = make_text(random.Random(26), 60_000)
    with tempfile.TemporaryDirectory() as folder:
        name, out = f"{folder}/text", f"{folder}/ids.bin"
        pathlib.Path(name).write_bytes(text.encode())
        for form in ("gpt2", "llama3", "qwen2", "smollm"):
            path = str(SOURCE / f"tests/tokenizers/{form}.json")
            subprocess.run([COMMAND, "tokenize", name, "--tokenizer", path, "--out", out],
                           check=True, stdout=subprocess.DEVNULL)
            got = array.array("H", pathlib.Path(out).read_bytes()[1024:]).tolist()
            want = Tokenizer.from_file(path).encode(text, add_special_tokens=False).ids
            assert got == want, form
            print(f"{form}: {len(got)} ids are equal")


if __name__ == "__main__":
    main()
