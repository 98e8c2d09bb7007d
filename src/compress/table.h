/* compress/table.h -- the compressors.  A row is a file that defines lki_compressor_NAME. */
#ifndef LKI_COMPRESS_TABLE_H
#define LKI_COMPRESS_TABLE_H

#include "lockstep/compress.h"

#define LKI_COMPRESSORS(ROW)                                                                     \
    ROW(powersgd)                                                                                \
    ROW(topk)                                                                                    \
    ROW(randomk)                                                                                 \
    ROW(sign)                                                                                    \
    ROW(terngrad)                                                                                \
    ROW(qsgd)                                                                                    \
    ROW(vote)

#define LKI_COMPRESSOR_EXTERN(name) extern const lk_compressor lki_compressor_##name;
LKI_COMPRESSORS(LKI_COMPRESSOR_EXTERN)
#undef LKI_COMPRESSOR_EXTERN

#endif
