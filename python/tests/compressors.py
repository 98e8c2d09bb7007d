"""compressors -- the library's gradient compressors by ctypes, for tests beside torch's."""
import ctypes

from lockstep import _library
from lockstep._library import Compression, layout

Key = layout.struct("lk_compress_key", rows=ctypes.c_size_t, cols=ctypes.c_size_t,
                    tensor=ctypes.c_uint32, group=ctypes.c_uint32, step=ctypes.c_uint64)
OPTIONS, KEY, POINTER = ctypes.POINTER(Compression), ctypes.POINTER(Key), ctypes.c_void_p
ROUND, SIZE = ctypes.c_uint32, ctypes.c_size_t
Part = layout.struct("lk_compress_part", first=SIZE, rows=SIZE, count=SIZE, stride=SIZE)
PART = ctypes.POINTER(Part)
Compressor = layout.struct(
    "lk_compressor",
    bytes=ctypes.CFUNCTYPE(SIZE, OPTIONS, KEY, ROUND),
    begin=ctypes.CFUNCTYPE(None, OPTIONS, KEY, POINTER),
    part=ctypes.CFUNCTYPE(ctypes.c_bool, OPTIONS, KEY, ROUND, ctypes.c_uint32, PART),
    encode=ctypes.CFUNCTYPE(None, OPTIONS, KEY, ROUND, PART, POINTER, POINTER, POINTER),
    settle=ctypes.CFUNCTYPE(None, OPTIONS, KEY, ROUND, POINTER),
    decode=ctypes.CFUNCTYPE(None, OPTIONS, KEY, ctypes.POINTER(POINTER), SIZE, SIZE, POINTER))


def load():
    """Returns the library, whose functions of error feedback have their types."""
    library = ctypes.CDLL(_library.path)
    for function in (library.lk_feedback_add, library.lk_feedback_keep):
        function.argtypes = [SIZE, POINTER, ctypes.c_uint64, POINTER]
        function.restype = None
    return library


def encode(compressor, options, key, turn, before, values, message):
    """Encodes all parts of a tensor in a round."""
    size = key.rows * key.cols
    part, index = Part(first=0, rows=1, count=size, stride=size), 0
    if not compressor.part:
        compressor.encode(options, key, turn, part, before, values, message)
        return
    while compressor.part(options, key, turn, index, part):
        compressor.encode(options, key, turn, part, before, values, message)
        index += 1


def find(name):
    found = ctypes.POINTER(Compressor)()
    if load().lk_compressor_find(ctypes.byref(found), name) != 0:
        raise ValueError(name)
    return found.contents
