/* comm/pages.h -- the pages of memory that the ranks of a host share. */
#ifndef LKI_COMM_PAGES_H
#define LKI_COMM_PAGES_H

#include "comm/group.h"

/* LK_ENOMEM where the machine, or the control group, has less than `bytes`. */
LK_NODISCARD lk_status lki_pages_available(const char *name, size_t bytes);

/* Of a new file that is mapped at `memory`: makes all pages where the kernel cannot be asked for
 * some of them (before Linux 5.14).  LK_ENOMEM where it has none. */
LK_NODISCARD lk_status lki_pages_reserve(int fd, const char *name, void *memory, size_t bytes);

/* Makes this rank's part of the pages; equal parts follow each other in order of rank.  LK_ENOMEM
 * where there are none. */
LK_NODISCARD lk_status lki_pages_fill(const lk_comm *comm, const char *name, void *memory,
                                      size_t bytes);

/* Enters pages that are there into this process's tables, so that their use costs no faults. */
void lki_pages_map(void *memory, size_t bytes);

#endif
