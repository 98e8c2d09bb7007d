"""``python -m lockstep prepare``: token files of Parquet, JSON lines and texts.

Documents are read one after the other and collected as text, each followed by the tokenizer's end
of text.  When a shard is full, ``lockstep tokenize`` converts it to token ids.  So the ids are the
same as in training on the text itself, and only one shard at a time takes memory and temporary
space.

Everything is written to ``OUT.partial``, which becomes ``OUT`` when it is complete.
"""

import argparse
import fcntl
import gzip
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zlib

END = ("<|endoftext|>", "<|end_of_text|>", "</s>")   # the first that the tokenizer has
SHARD_MIB = 256


class Refused(Exception):
    """Says what is wrong with the arguments or the data."""


# ---- Documents ---------------------------------------------------------------------------------


def _parquet(path, key):
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise Refused(f"{path}: Parquet needs the package pyarrow "
                      "(pip install 'lockstep[data]')") from None
    try:
        with parquet.ParquetFile(path) as file:
            if key not in file.schema_arrow.names:
                raise Refused(f"{path} has no column {key!r}, but "
                              f"{', '.join(file.schema_arrow.names)}: name one with --text-key")
            for batch in file.iter_batches(batch_size=1024, columns=[key]):
                yield from (value.as_py() for value in batch.column(0))
    except (ArrowException, OSError) as error:
        raise Refused(f"{path}: {error}") from None


def _members(pairs):
    """Return an object of JSON.  Refuse one that has a member twice."""
    found = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the member {name!r} is there twice")
        found[name] = value
    return found


def _no_number(text):
    """Refuse NaN and Infinity."""
    raise ValueError(f"{text} is no number of JSON")


def _integer(_digits):
    """Return 0 for any integer: none is used, and Python does not convert long ones."""
    return 0


def _json(line, path, number):
    try:
        return json.loads(line, parse_int=_integer, parse_constant=_no_number,
                          object_pairs_hook=_members)
    except ValueError as error:
        raise Refused(f"{path}, line {number}: {error}") from None
    except RecursionError:
        raise Refused(f"{path}, line {number} nests arrays or objects too deep") from None


def _json_lines(path, key):
    opened = gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb")
    number = 0
    try:
        with opened as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    value = _json(line, path, number)
                    if not isinstance(value, dict) or key not in value:
                        raise Refused(f"{path}, line {number} is no object with the member "
                                      f"{key!r}: name it with --text-key")
                    yield value[key]
    except (EOFError, OSError, zlib.error) as error:
        raise Refused(f"{path}, after line {number}: {error}") from None


def _text(path, _key):
    yield path.read_bytes()


READERS = {".parquet": _parquet, ".jsonl": _json_lines, ".jsonl.gz": _json_lines,
           ".ndjson": _json_lines, ".txt": _text}


def _reader(path):
    for ending, reader in READERS.items():
        if path.name.endswith(ending):
            return reader
    return None


def find_files(inputs):
    """Return the files of ``inputs`` in order.  Those of a folder are sorted by the bytes of their
    paths.
    """
    found = []
    for path in map(pathlib.Path, inputs):
        if path.is_dir():
            below = [p for p in path.rglob("*") if p.is_file() and _reader(p) is not None]
            found += sorted(below, key=lambda p: os.fsencode(p.relative_to(path)))
            if not below:
                raise Refused(f"{path} has no file that ends with {', '.join(READERS)}")
        elif not path.is_file():
            raise Refused(f"{path}: there is no such file or folder")
        elif _reader(path) is None:
            raise Refused(f"{path}: the ending is none of {', '.join(READERS)}")
        else:
            found.append(path)
    return found


def documents(path, key):
    """Yield the documents of a file as bytes.  Refuse those that are no text, or empty."""
    for number, value in enumerate(_reader(path)(path, key), 1):
        if isinstance(value, str):
            try:
                value = value.encode()
            except UnicodeEncodeError:
                raise Refused(f"{path}, document {number} has half a character (a surrogate): "
                              "remove or correct it") from None
        if not isinstance(value, bytes):
            raise Refused(f"{path}, document {number}: {key!r} is no text but "
                          f"{type(value).__name__}: remove it")
        if value:
            yield value


# ---- Shards ------------------------------------------------------------------------------------


def read_tokenizer(path):
    """Return the end of text of a tokenizer.json, its id, and the size of the vocabulary."""
    try:
        data = json.loads(pathlib.Path(path).read_bytes())
        added = {token["content"]: token["id"] for token in data.get("added_tokens", [])}
        vocabulary = max([*data["model"]["vocab"].values(), *added.values()]) + 1
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(f"--tokenizer {path} cannot be read as a tokenizer.json: {error!r}") from None
    for end in END:
        if end in added:
            return end, added[end], vocabulary
    raise Refused(f"--tokenizer {path} has no end of text: none of {', '.join(END)}")


def _digest(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _Shards:
    """Collects documents as text, and makes a token file of every ``most`` bytes."""

    def __init__(self, folder, tokenizer, end, most, command):
        self._folder, self._tokenizer, self._end = folder, tokenizer, end.encode()
        self._most, self._command = most, command
        self._path, self._text, self._bytes = folder / "text", None, 0
        self.done, self.count = [], 0

    def add(self, document):
        if self._text is None:
            self._text = open(self._path, "wb")
        self._text.write(document)
        self._text.write(self._end)
        self._bytes += len(document)
        self.count += 1
        if self._bytes >= self._most:
            self.close()

    def close(self):
        if self._text is None:
            return
        self._text.close()
        name = f"{len(self.done):06}.bin"
        made = subprocess.run([self._command, "tokenize", self._path, "--tokenizer",
                               self._tokenizer, "--out", self._folder / name],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if made.returncode != 0:
            raise Refused(made.stderr.strip())
        self._path.unlink()
        self._text, self._bytes = None, 0
        with open(self._folder / name, "rb") as file:
            tokens = int.from_bytes(file.read(12)[8:], "little")
        _sync(self._folder / name)
        self.done.append({"file": name, "tokens": tokens, "sha256": _digest(self._folder / name)})


def _content_hash(folder):
    """Return the hash that runs on these files report, from the library itself."""
    from lockstep._library import content_hash
    return content_hash(f"shards:{folder}", context=1)


def _fill(folder, files, options, command):
    end, end_id, vocabulary = read_tokenizer(options.tokenizer)
    shards = _Shards(folder, options.tokenizer, end, options.shard_mib << 20, command)
    for path in files:
        for document in documents(path, options.text_key):
            shards.add(document)
    shards.close()
    if not shards.done:
        raise Refused("there is no document that is not empty")
    shutil.copyfile(options.tokenizer, folder / "tokenizer.json")
    manifest = {
        "content_hash": _content_hash(folder),
        "documents": shards.count,
        "tokens": sum(shard["tokens"] for shard in shards.done),
        "vocabulary": vocabulary,
        "end": end_id,
        "tokenizer_sha256": _digest(options.tokenizer),
        "text_key": options.text_key,
        "inputs": [{"file": path.name, "sha256": _digest(path)} for path in files],
        "shards": shards.done,
    }
    with open(folder / "manifest.json", "w") as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    return manifest


# ---- The command -------------------------------------------------------------------------------


def _take(folder):
    """Make the folder, or empty what a killed process has left, and lock it.  Return the lock."""
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_ino != folder.stat().st_ino:   # just renamed by its process
            raise FileNotFoundError
    except (BlockingIOError, FileNotFoundError):
        os.close(lock)
        raise Refused(f"another process is writing {folder}") from None
    for path in folder.iterdir():
        path.unlink()
    return lock


def prepare(options, command):
    """Write the folder ``options.out`` and return its manifest, or raise ``Refused`` and leave
    nothing.
    """
    out = pathlib.Path(options.out)
    partial = out.with_name(out.name + ".partial")
    if out.exists():
        raise Refused(f"--out {out} exists: remove it, or give another name")
    if not out.absolute().parent.is_dir():
        raise Refused(f"--out {out}: there is no folder {out.absolute().parent}")
    files = find_files(options.inputs)
    lock = _take(partial)
    try:
        manifest = _fill(partial, files, options, command)
        _sync(partial)
        partial.rename(out)
        _sync(out.absolute().parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)
    return manifest


def main(arguments, command):
    parser = argparse.ArgumentParser(
        prog="python -m lockstep prepare",
        description="Make token files for `train gpt --data shards:DIR` of Parquet, JSON lines and "
                    "texts.  A text is one document.  The same inputs give the same files.")
    parser.add_argument("inputs", nargs="+", metavar="INPUT",
                        help=f"files or folders: {', '.join(READERS)}")
    parser.add_argument("--tokenizer", required=True, metavar="FILE",
                        help="a tokenizer.json of byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM)")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument("--text-key", default="text", metavar="NAME",
                        help="the column or member that has the text (default: text)")
    parser.add_argument("--shard-mib", type=int, default=SHARD_MIB, metavar="N",
                        help=f"text of a token file, in MiB (default: {SHARD_MIB})")
    options = parser.parse_args(arguments)
    if not 1 <= options.shard_mib <= 2048:
        parser.error("--shard-mib is from 1 to 2048")
    try:
        manifest = prepare(options, command)
    except (Refused, OSError) as error:
        if isinstance(error, OSError):   # one of write() has no name
            place = error.filename or f"cannot write {options.out.rstrip('/')}.partial"
            error = f"{place}: {error.strerror}"
        print(f"lockstep: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {manifest['documents']} documents, {manifest['tokens']} tokens in "
          f"{len(manifest['shards'])} files, content hash {manifest['content_hash']}")
    print(f"train with --data 'shards:{options.out}?vocab={manifest['vocabulary']}'")
    return 0
