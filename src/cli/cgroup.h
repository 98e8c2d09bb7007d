/* cli/cgroup.h -- the limits of this process's cgroup, such as those of a container. */
#ifndef LKI_CLI_CGROUP_H
#define LKI_CLI_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the beginning of a small file, without its last newline.  Returns false if the file cannot
 * be read. */
bool lki_read_text(const char *path, char *text, size_t bytes);

/* Returns the number of cores whose time the cgroup grants; 0 if it has no limit. */
double lki_cgroup_cores(void);

/* Returns the number of bytes that the cgroup still grants; UINT64_MAX if it has no limit. */
uint64_t lki_cgroup_memory(void);

#endif
