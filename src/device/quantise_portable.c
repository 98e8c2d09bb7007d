/* quantise_portable.c -- the loops of quantised blocks for any processor. */
#define LKI_QUANTISE_TABLE lki_quantise_portable
#include "device/quantise.inc"
