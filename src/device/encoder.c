/* encoder.c -- the table of encoders, and the choice of their loops. */
#include "device/encoder.h"

#include "base/status.h"
#include "device/quantise.h"
#include "device/reduce.h"

static const lki_encoder *const encoders[] = {
#define TYPE_ROW(name, text, label) [LK_##name] = &lki_encoder_##name,
#define WIRE_ROW(name, code, text, label) [LK_##name] = &lki_encoder_##name,
    LK_ENCODING_TABLE(TYPE_ROW, WIRE_ROW)
#undef TYPE_ROW
#undef WIRE_ROW
};

const lki_encoder *lki_encoder_of(lk_dtype dtype)
{
    size_t row = (size_t)dtype;
    return row < sizeof encoders / sizeof encoders[0] ? encoders[row] : NULL;
}

bool lki_rounds(lk_dtype rounded)
{
    return lki_encoder_of(rounded) != NULL;
}

bool lki_quantises(lk_dtype dtype)
{
    const lki_encoder *encoder = lki_encoder_of(dtype);
    return encoder != NULL && encoder->unit > 1;
}

size_t lki_rounded_bytes(lk_dtype rounded, size_t count)
{
    const lki_encoder *encoder = lki_encoder_of(rounded);
    if (encoder == NULL)
        return count * lk_dtype_bytes(rounded == 0 ? LK_F32 : rounded);
    return (count + encoder->unit - 1) / encoder->unit * encoder->bytes;
}

static lki_instruction_set best(void)
{
#if defined(__x86_64__)
    const lki_type_loops *loops = lki_combine_best();
    if (loops == lki_combine_avx512)
        return LKI_AVX512;
    if (loops == lki_combine_avx2)
        return LKI_AVX2;
#endif
    return LKI_PORTABLE;
}

const lki_type_loops *lki_rounding_loops(lk_dtype rounded)
{
    const lki_encoder *encoder = lki_encoder_of(rounded);
    LK_ASSERT(encoder != NULL);
    return encoder->loops[best()];
}

void lki_quantise(lk_dtype dtype, size_t count, const float *from, void *to)
{
    lki_rounding_loops(dtype)->store(count, from, 1, to);
}

void lki_dequantise(lk_dtype dtype, size_t count, const void *from, float *to)
{
    lki_rounding_loops(dtype)->load(count, from, 1, to);
}
