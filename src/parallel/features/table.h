/* parallel/features/table.h -- the rows of lki_feature_table, in the order in which they take
 * effect. */
#ifndef LKI_PARALLEL_FEATURES_TABLE_H
#define LKI_PARALLEL_FEATURES_TABLE_H

#include "parallel/feature.h"

#define LKI_FEATURES(ROW)                                                                          \
    ROW(audit) /* hashes terms before a hook changes them */                                       \
    ROW(speculation)                                                                               \
    ROW(noise)                                                                                     \
    ROW(hooks)                                                                                     \
    ROW(backups)                                                                                   \
    ROW(reorder) /* changes the layout of buckets before shares move */                            \
    ROW(balance)                                                                                   \
    ROW(groups)                                                                                    \
    ROW(unused)                                                                                    \
    ROW(scaler) /* last: no feature may fail a step that is skipped */

#define LKI_FEATURE_DECLARE(x) extern const lki_feature lki_feature_##x;
LKI_FEATURES(LKI_FEATURE_DECLARE)
#undef LKI_FEATURE_DECLARE

#endif
