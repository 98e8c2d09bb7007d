/* combine_portable.c -- the loops of reductions for any processor. */
#define LKI_COMBINE_TABLE lki_combine_portable
#include "device/combine.inc"
