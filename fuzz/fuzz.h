/* fuzz.h -- what a fuzz target is: one function that must survive any bytes.
 *
 * It is called by libFuzzer with bytes that it makes up, and by replay.c with those of the files
 * in corpus/TARGET/, which are kept because they reach something or once broke something.
 * A target calls one parser from memory and then reads all that the parser says is there.
 */
#ifndef LKI_FUZZ_H
#define LKI_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#endif
