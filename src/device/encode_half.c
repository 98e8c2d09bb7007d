/* encode_half.c -- the encoders of 16-bit floats.  Their loops are those of reductions
 * (combine.inc). */
#include "device/encoder.h"

#if defined(__x86_64__)
#define LOOPS(type)                                                                              \
    { &lki_combine_portable[type], &lki_combine_avx2[type], &lki_combine_avx512[type] }
#else
#define LOOPS(type) { &lki_combine_portable[type] }
#endif

const lki_encoder lki_encoder_BF16 = { .unit = 1, .bytes = 2, .loops = LOOPS(LK_BF16) };
const lki_encoder lki_encoder_F16  = { .unit = 1, .bytes = 2, .loops = LOOPS(LK_F16) };
