/* loops_portable.c -- the loops of reductions and adaptive summation for any processor. */
#define LKI_COMBINE_TABLE lki_combine_portable
#include "device/combine.inc"
#define LKI_ADASUM_TABLE lki_adasum_portable
#include "device/adasum.inc"
