"""Values of Python as JSON, and back, for the manifests of checkpoints.

JSON has no infinities, no tuples and only strings as keys.  Schedulers of torch have such values:
ReduceLROnPlateau begins with an infinite `best`, and MultiStepLR has a Counter of steps.  They
become an object with one key, and so does a dict that looks like such an object.  Tuples become
lists where a configuration is described, and are kept in values that a program gets back.
"""

import collections
import math

_INT_MAX = 2 ** 63 - 1
_FLOAT, _ITEMS, _COUNTER, _TUPLE = _KINDS = (
    "__float__", "__items__", "__counter__", "__tuple__")


def to_json(value, name, tuples=False):
    """Return `value` with types of JSON only.  Raise ``TypeError`` with the name of the first part
    that has no such form; `name` is that of the whole.

    tuples: ``from_json()`` returns tuples for tuples, and else lists.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int and -_INT_MAX <= value <= _INT_MAX:
        return value
    if isinstance(value, float):   # also that of NumPy
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if isinstance(value, (list, tuple)):
        items = [to_json(v, f"{name}.{i}", tuples) for i, v in enumerate(value)]
        return {_TUPLE: items} if tuples and isinstance(value, tuple) else items
    if isinstance(value, dict):
        return _object(value, name, tuples)
    raise TypeError(f"'{name}' is {value!r} of type {type(value).__name__}, which a checkpoint "
                    "cannot hold: it holds numbers, text, lists and dicts of them")


def _object(value, name, tuples):
    is_plain = all(isinstance(k, str) for k in value) and not (len(value) == 1 and
                                                               next(iter(value)) in _KINDS)
    if is_plain and not isinstance(value, collections.Counter):
        return {k: to_json(v, f"{name}.{k}", tuples) for k, v in value.items()}
    kind = _COUNTER if isinstance(value, collections.Counter) else _ITEMS
    return {kind: [[to_json(part, f"{name}.{pair[0]}.{i}", tuples) for i, part in enumerate(pair)]
                   for pair in value.items()]}


def from_json(value):
    """Return what ``to_json()`` was given."""
    if isinstance(value, list):
        return [from_json(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (kind, content), = value.items()
        if kind == _FLOAT:
            return float(content)
        if kind == _TUPLE:
            return tuple(from_json(content))
        if kind in (_ITEMS, _COUNTER):
            pairs = dict(from_json(content))
            return collections.Counter(pairs) if kind == _COUNTER else pairs
    return {k: from_json(v) for k, v in value.items()}


def first_difference(a, b, name=""):
    """Return (name, part of `a`, part of `b`) of the first difference of two values of JSON types,
    or None.  A part that is missing is None."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(k for k in b if k not in a)]
        pairs = [(k, a.get(k), b.get(k)) for k in keys]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(i, x, y) for i, (x, y) in enumerate(zip(a, b))]
    else:
        return None if a == b else (name, a, b)
    for key, x, y in pairs:
        found = first_difference(x, y, f"{name}.{key}" if name else str(key))
        if found is not None:
            return found
    return None
