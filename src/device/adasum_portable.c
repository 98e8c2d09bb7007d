/* adasum_portable.c -- the loops of adaptive summation for any processor. */
#define LKI_ADASUM_TABLE lki_adasum_portable
#include "device/adasum.inc"
