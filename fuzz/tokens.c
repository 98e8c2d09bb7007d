/* tokens.c -- any bytes as a file of token ids, with a header, and raw in both widths. */
#include "fuzz.h"

#include "data/files.h"

static void parse(const uint8_t *data, size_t bytes, uint32_t width, uint64_t vocabulary)
{
    lki_tokens tokens;
    if (lki_tokens_parse(&tokens, data, bytes, width, vocabulary, "input") != LK_OK)
        return;
    LK_ASSERT(width == 0 || tokens.width == width);
    LK_ASSERT(tokens.count > 0 && tokens.values + tokens.count * tokens.width == data + bytes);
    uint64_t largest = 0;
    for (uint64_t i = 0; i < tokens.count; i++) {
        uint64_t token = 0;
        for (uint32_t b = tokens.width; b-- > 0;)
            token = token << 8 | tokens.values[i * tokens.width + b];
        largest = token > largest ? token : largest;
    }
    LK_ASSERT(largest == tokens.max && (vocabulary == 0 || largest < vocabulary));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    for (uint32_t width = 0; width <= 4; width += 2) {
        parse(data, bytes, width, 0);
        parse(data, bytes, width, 600);
    }
    return 0;
}
