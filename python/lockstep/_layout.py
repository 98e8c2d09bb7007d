"""The structs and constants of the C library, at the offsets that the library itself reports.

A binding that repeats the layout of C structs is wrong as soon as a field is added.  So this
package repeats only the names and types of the fields that it uses.  ``lk_layout()`` of the loaded
library gives sizes and offsets.
"""

import ctypes

_KINDS = {
    "bool": (ctypes.c_bool,),
    "int": (ctypes.c_int8, ctypes.c_int16, ctypes.c_int32, ctypes.c_int64),
    "uint": (ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64),
    "float": (ctypes.c_float, ctypes.c_double),
}


class Layout:
    """The text of ``lk_layout()``, parsed.

    ``constants`` maps the names of C enumerators and limits to their values.
    """

    def __init__(self, text):
        self.version = "unknown"
        self.constants = {}
        self._structs = {}
        fields = None
        for line in text.splitlines():
            words = line.split()
            if line.startswith(" "):   # a field, whose name may be any word
                name, offset, size, kind = words
                fields[name] = (int(offset), int(size), kind)
            elif words[0] == "version":
                self.version = words[1]
            elif words[0] == "struct":
                fields = {}
                self._structs[words[1]] = (int(words[2]), fields)
            elif words[0] == "constant":
                self.constants[words[1]] = int(words[2])

    def struct(self, name, /, **types):
        """Return a ``ctypes.Structure`` with the fields in `types` (name -> ctypes type).

        Fields that are not named are padding and stay zero, which is their default.  Raise
        ``ImportError`` if the library lacks a field or has one of another size or kind.
        """
        if name not in self._structs:
            raise ImportError(f"the lockstep library has no struct {name}: library and package "
                              "are of different versions")
        size, known = self._structs[name]
        for field, ctype in types.items():
            self._check(name, field, ctype, known)
        members, end = [], 0
        for field in sorted(types, key=lambda f: known[f][0]):
            offset, length, _ = known[field]
            if offset > end:
                members.append((f"_gap_{end}", ctypes.c_byte * (offset - end)))
            members.append((field, types[field]))
            end = offset + length
        if size > end:
            members.append((f"_gap_{end}", ctypes.c_byte * (size - end)))
        return type(name, (ctypes.Structure,), {"_layout_": "ms", "_pack_": 1, "_fields_": members})

    @staticmethod
    def _check(name, field, ctype, known):
        if field not in known:
            raise ImportError(f"the lockstep library has no field {name}.{field}: library and "
                              "package are of different versions")
        _, size, kind = known[field]
        if ctypes.sizeof(ctype) != size:
            raise ImportError(f"{name}.{field} has {size} bytes in the lockstep library, and "
                              f"{ctypes.sizeof(ctype)} in this package")
        if kind in _KINDS and ctype not in _KINDS[kind]:
            raise ImportError(f"{name}.{field} is of kind {kind} in the lockstep library, and "
                              f"{ctype.__name__} in this package")
