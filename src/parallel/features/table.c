/* table.c -- the table of features, generated from the rows in table.h. */
#include "parallel/features/table.h"

#define ROW(x) &lki_feature_##x,
const lki_feature *const lki_feature_table[] = { LKI_FEATURES(ROW) };

enum { COUNT = sizeof lki_feature_table / sizeof lki_feature_table[0] };
_Static_assert((int)COUNT <= (int)LKI_FEATURES_MAX, "raise LKI_FEATURES_MAX");

const uint32_t lki_feature_count = COUNT;
