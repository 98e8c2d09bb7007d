/* layout.c -- lk_layout(): the text that describes the public structs.
 *
 * The compiler writes the text.  It is one constant struct, whose members are arrays of characters
 * and therefore have no padding between them.  Names are initialised by string literals.  Numbers
 * are initialised digit by digit, because sizes and offsets are constant expressions but not
 * literals.  So the text cannot differ from what the compiler did with the headers, it needs no
 * memory that changes, and a program can read it without running the library.
 */
#include "lockstep/binding.h"

#include <limits.h>

#include "lockstep/checkpoint.h"
#include "lockstep/comm.h"
#include "lockstep/data.h"
#include "lockstep/launch.h"
#include "lockstep/optim.h"
#include "lockstep/parallel.h"
#include "lockstep/tensor.h"

/* The arrays have no terminating zero. */
#if defined(__has_attribute)
#if __has_attribute(nonstring)
#define PART __attribute__((nonstring)) char
#endif
#endif
#ifndef PART
#define PART char
#endif

/* ---- Numbers ----------------------------------------------------------------------------- */

#define MAGNITUDE(v) ((long long)(v) < 0 ? -(long long)(v) : (long long)(v))

/* The character of number v at the place of power p of ten: a digit, the sign or a blank. */
#define PLACE(v, p)                                                                              \
    (char)(MAGNITUDE(v) >= (p) || (p) == 1 ? '0' + MAGNITUDE(v) / (p) % 10                       \
           : (long long)(v) < 0 && (MAGNITUDE(v) >= (p) / 10 || (p) == 10) ? '-' : ' ')

enum { SIZE_PLACES = 5, VALUE_PLACES = 11 };

#define SIZE(v) { PLACE(v, 10000), PLACE(v, 1000), PLACE(v, 100), PLACE(v, 10), PLACE(v, 1) }
#define VALUE_OF(v)                                                                              \
    { PLACE(v, 10000000000), PLACE(v, 1000000000), PLACE(v, 100000000), PLACE(v, 10000000),      \
      PLACE(v, 1000000), PLACE(v, 100000), PLACE(v, 10000), PLACE(v, 1000), PLACE(v, 100),       \
      PLACE(v, 10), PLACE(v, 1) }

/* ---- Kinds ------------------------------------------------------------------------------- */

/* Selects by the kind of a value.  Any other type is an error of the compiler. */
#define BY_KIND(value, b, i, u, f)                                                               \
    _Generic((value), bool: b, signed char: i, short: i, int: i, long: i, long long: i,          \
             unsigned char: u, unsigned short: u, unsigned: u, unsigned long: u,                 \
             unsigned long long: u, float: f, double: f)

enum { KIND_PLACES = 5 };

#define KIND(value)                                                                              \
    { BY_KIND(value, ' ', ' ', ' ', 'f'), BY_KIND(value, 'b', ' ', 'u', 'l'),                    \
      BY_KIND(value, 'o', 'i', 'i', 'o'), BY_KIND(value, 'o', 'n', 'n', 'a'),                    \
      BY_KIND(value, 'l', 't', 't', 't') }

#define FIELD_OF(type, field) (((type *)0)->field)
#define COUNT(type, field) (sizeof FIELD_OF(type, field) / sizeof FIELD_OF(type, field)[0])

/* ---- The text ---------------------------------------------------------------------------- */

/* A field's name, offset and size, which precede its kind. */
#define FIELD_PARTS(type, field)                                                                 \
    PART type##_##field##_name[sizeof "  " #field " " - 1];                                      \
    char type##_##field##_offset[SIZE_PLACES], type##_##field##_blank;                           \
    char type##_##field##_size[SIZE_PLACES];
#define FIELD_TEXT(type, field)                                                                  \
    "  " #field " ", SIZE(offsetof(type, field)), ' ', SIZE(sizeof FIELD_OF(type, field)),

struct text {
    PART version[sizeof "version " LK_VERSION "\n" - 1];
#define STRUCT(type)                                                                             \
    PART type##_head[sizeof "struct " #type " " - 1];                                            \
    char type##_size[SIZE_PLACES], type##_end;
#define VALUE(type, field)                                                                       \
    FIELD_PARTS(type, field)                                                                     \
    char type##_##field##_blank_2, type##_##field##_kind[KIND_PLACES], type##_##field##_end;
#define VALUES(type, field)                                                                      \
    FIELD_PARTS(type, field)                                                                     \
    char type##_##field##_blank_2, type##_##field##_kind[KIND_PLACES];                           \
    char type##_##field##_open, type##_##field##_count, type##_##field##_close;                  \
    char type##_##field##_end;
#define POINTER(type, field)                                                                     \
    FIELD_PARTS(type, field)                                                                     \
    PART type##_##field##_kind[sizeof " pointer\n" - 1];
#define TEXT(type, field)                                                                        \
    FIELD_PARTS(type, field)                                                                     \
    PART type##_##field##_kind[sizeof " text\n" - 1];
#define NESTED(type, field)                                                                      \
    FIELD_PARTS(type, field)                                                                     \
    PART type##_##field##_kind[sizeof " struct\n" - 1];
#define CONSTANT(name)                                                                           \
    PART name##_head[sizeof "constant " #name " " - 1];                                          \
    char name##_value[VALUE_PLACES], name##_end;
#include "binding/layout.def"
    char zero;
};

static const struct text text = {
    "version " LK_VERSION "\n",
#define STRUCT(type) "struct " #type " ", SIZE(sizeof(type)), '\n',
#define VALUE(type, field) FIELD_TEXT(type, field) ' ', KIND(FIELD_OF(type, field)), '\n',
#define VALUES(type, field)                                                                      \
    FIELD_TEXT(type, field)                                                                      \
    ' ', KIND(FIELD_OF(type, field)[0]), '[', (char)('0' + COUNT(type, field)), ']', '\n',
#define POINTER(type, field) FIELD_TEXT(type, field) " pointer\n",
#define TEXT(type, field) FIELD_TEXT(type, field) " text\n",
#define NESTED(type, field) FIELD_TEXT(type, field) " struct\n",
#define CONSTANT(name) "constant " #name " ", VALUE_OF(name), '\n',
#include "binding/layout.def"
    .zero = '\0',
};

/* Numbers have enough places.  tests/house/layout checks the rows. */
#define STRUCT(type)                                                                             \
    _Static_assert(sizeof(type) < 100000, #type " is too large for SIZE_PLACES");
#define VALUE(type, field)
#define VALUES(type, field)                                                                      \
    _Static_assert(COUNT(type, field) < 10, "the length of " #type "." #field " has two digits");
#define POINTER(type, field)                                                                     \
    _Static_assert(sizeof FIELD_OF(type, field) == sizeof(void *), #field " is no pointer");
#define TEXT(type, field)                                                                        \
    _Static_assert(_Generic(&FIELD_OF(type, field)[0], char *: 1), #field " is no text");
#define NESTED(type, field)
#define CONSTANT(name)                                                                           \
    _Static_assert(MAGNITUDE(name) <= UINT_MAX, #name " is too large for VALUE_PLACES");
#include "binding/layout.def"

const char *lk_layout(void)
{
    _Static_assert(_Alignof(struct text) == 1, "there is no padding between parts");
    return (const char *)&text;
}
