"""compressors -- the library's gradient compressors by ctypes, for tests beside torch's."""
import ctypes
import os


class Compression(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("rank", ctypes.c_uint32),
                ("min_rate", ctypes.c_double), ("cold_start", ctypes.c_bool),
                ("ratio", ctypes.c_double), ("seed", ctypes.c_uint64)]


class Key(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_size_t), ("cols", ctypes.c_size_t), ("tensor", ctypes.c_uint32),
                ("group", ctypes.c_uint32), ("step", ctypes.c_uint64)]


OPTIONS, KEY, POINTER = ctypes.POINTER(Compression), ctypes.POINTER(Key), ctypes.c_void_p
ROUND, SIZE = ctypes.c_uint32, ctypes.c_size_t


class Compressor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("text", ctypes.c_char_p), ("combine", ctypes.c_int),
                ("rounds", ctypes.c_uint32),
                ("bytes", ctypes.CFUNCTYPE(SIZE, OPTIONS, KEY, ROUND)),
                ("begin", ctypes.CFUNCTYPE(None, OPTIONS, KEY, POINTER)),
                ("encode", ctypes.CFUNCTYPE(None, OPTIONS, KEY, ROUND, POINTER, POINTER, POINTER)),
                ("settle", ctypes.CFUNCTYPE(None, OPTIONS, KEY, ROUND, POINTER)),
                ("decode", ctypes.CFUNCTYPE(None, OPTIONS, KEY, ctypes.POINTER(POINTER), SIZE,
                                            SIZE, POINTER))]


def load():
    """Returns the library, whose functions of error feedback have their types."""
    library = ctypes.CDLL(os.environ["LOCKSTEP_LIBRARY"])
    for function in (library.lk_feedback_add, library.lk_feedback_keep):
        function.argtypes = [SIZE, POINTER, ctypes.c_uint64, POINTER]
        function.restype = None
    return library


def find(name):
    found = ctypes.POINTER(Compressor)()
    if load().lk_compressor_find(ctypes.byref(found), name) != 0:
        raise ValueError(name)
    return found.contents
