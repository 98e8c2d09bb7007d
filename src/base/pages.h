/* base/pages.h -- allocating the pages of memory that processes share. */
#ifndef LKI_BASE_PAGES_H
#define LKI_BASE_PAGES_H

#include "base/status.h"

/* Returns LK_ENOMEM if the machine or the control group has less than `bytes` available. */
LK_NODISCARD lk_status lki_pages_available(const char *name, size_t bytes);

/* Allocates all pages of a new file that is mapped at `memory`.  Does nothing if the kernel can
 * populate a part of a mapping (Linux 5.14).  Returns LK_ENOMEM if there is too little memory. */
LK_NODISCARD lk_status lki_pages_reserve(int fd, const char *name, void *memory, size_t bytes);

/* Allocates the pages of one of `parts` equal parts of the memory, with this part's share of the
 * cores.  Each part has its own process or thread.  Returns LK_ENOMEM if there is too little
 * memory. */
LK_NODISCARD lk_status lki_pages_fill(uint32_t part, uint32_t parts, const char *name,
                                      void *memory, size_t bytes);

/* Enters existing pages into the page tables of this process, so that their first use causes no
 * page faults. */
void lki_pages_map(void *memory, size_t bytes);

#endif
