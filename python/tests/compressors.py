"""compressors -- the library's gradient compressors by ctypes, for tests beside torch's."""
import ctypes

from lockstep import _library
from lockstep._library import Compression, layout

Key = layout.struct("lk_compress_key", rows=ctypes.c_size_t, cols=ctypes.c_size_t,
                    tensor=ctypes.c_uint32, group=ctypes.c_uint32, step=ctypes.c_uint64)
OPTIONS, KEY, POINTER = ctypes.POINTER(Compression), ctypes.POINTER(Key), ctypes.c_void_p
ROUND, SIZE = ctypes.c_uint32, ctypes.c_size_t
Compressor = layout.struct(
    "lk_compressor",
    bytes=ctypes.CFUNCTYPE(SIZE, OPTIONS, KEY, ROUND),
    begin=ctypes.CFUNCTYPE(None, OPTIONS, KEY, POINTER),
    encode=ctypes.CFUNCTYPE(None, OPTIONS, KEY, ROUND, POINTER, POINTER, POINTER),
    settle=ctypes.CFUNCTYPE(None, OPTIONS, KEY, ROUND, POINTER),
    decode=ctypes.CFUNCTYPE(None, OPTIONS, KEY, ctypes.POINTER(POINTER), SIZE, SIZE, POINTER))


def load():
    """Returns the library, whose functions of error feedback have their types."""
    library = ctypes.CDLL(_library.path)
    for function in (library.lk_feedback_add, library.lk_feedback_keep):
        function.argtypes = [SIZE, POINTER, ctypes.c_uint64, POINTER]
        function.restype = None
    return library


def find(name):
    found = ctypes.POINTER(Compressor)()
    if load().lk_compressor_find(ctypes.byref(found), name) != 0:
        raise ValueError(name)
    return found.contents
