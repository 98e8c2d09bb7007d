/* device/encoder.h -- encoders: ways to round FP32 and to send it in fewer bytes.
 *
 * An encoder is one file, encode_NAME.c, that defines lki_encoder_NAME, and one row of
 * LK_ENCODING_TABLE (lockstep/base.h).  The row also adds the encoder's name to the choices of the
 * command's options.  No other file names the encoder.  blocks.h defines the loops of encoders
 * whose elements share a factor, once for each instruction set.
 *
 * Rounding must be idempotent, so that callers need not know whether a vector is already rounded.
 * All instruction sets must give the same bits.
 */
#ifndef LKI_DEVICE_ENCODER_H
#define LKI_DEVICE_ENCODER_H

#include "device/combine_loops.h"

enum { LKI_QUANTISED = 256 }; /* elements of a block that share a factor */

/* The instruction sets with loops of their own.  All but the first exist on x86-64 only. */
typedef enum { LKI_PORTABLE, LKI_AVX2, LKI_AVX512, LKI_INSTRUCTION_SETS } lki_instruction_set;

typedef struct {
    size_t unit;  /* elements that are rounded and sent together: LKI_QUANTISED, or 1 */
    size_t bytes; /* the bytes in which a unit is sent */
    /* The loops `load`, `store`, `rounded` and `rounded_sum` for each instruction set.  A vector
     * must begin with a unit.  Its last unit may be incomplete. */
    const lki_type_loops *loops[LKI_INSTRUCTION_SETS];
} lki_encoder;

#define LKI_ENCODER_TYPE(name, text, label) extern const lki_encoder lki_encoder_##name;
#define LKI_ENCODER_WIRE(name, code, text, label) LKI_ENCODER_TYPE(name, text, label)
LK_ENCODING_TABLE(LKI_ENCODER_TYPE, LKI_ENCODER_WIRE)
#undef LKI_ENCODER_TYPE
#undef LKI_ENCODER_WIRE

/* Returns the encoder of a type; NULL if sums are not rounded to the type. */
const lki_encoder *lki_encoder_of(lk_dtype dtype);

/* The names of all types that have an encoder, each followed by a comma, for messages. */
#define LKI_ENCODER_TEXT(name, text, label) #name ", "
#define LKI_ENCODER_WIRE_TEXT(name, code, text, label) #name ", "
#define LKI_ENCODER_NAMES LK_ENCODING_TABLE(LKI_ENCODER_TEXT, LKI_ENCODER_WIRE_TEXT)

#endif
