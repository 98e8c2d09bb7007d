/* scan_portable.c -- the loops over tensors for any processor. */
#define LKI_SCAN_BITS 0
#define LKI_SCAN_NAME "portable"
#define LKI_SCAN_TABLE lki_scan_portable
#include "compress/scan.inc"
