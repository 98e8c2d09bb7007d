/* base/number.h -- numbers as text. */
#ifndef LKI_NUMBER_H
#define LKI_NUMBER_H

enum { LKI_NUMBER_BYTES = 32 };

/* Writes a number as the shortest decimal that reads back to the same bits, such as 0.9. */
void lki_number_text(char text[LKI_NUMBER_BYTES], double value);

#endif
