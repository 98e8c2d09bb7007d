/* bench/usage.h -- the usage of a benchmark, which is the comment at the top of its file.
 *
 * The program contains its own source, so that --help prints that comment.
 */
#ifndef LK_BENCH_USAGE_H
#define LK_BENCH_USAGE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__asm__(".pushsection .rodata\n"
        ".globl bench_source\n"
        "bench_source: .incbin \"" __BASE_FILE__ "\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char bench_source[] __attribute__((visibility("hidden")));

/* Prints the lines of the comment without their first three characters. */
static inline void print_usage(void)
{
    for (const char *line = bench_source; strncmp(line, " */", 3) != 0;) {
        int length = (int)strcspn(line, "\n");
        printf("%.*s\n", length > 3 ? length - 3 : 0, length > 3 ? line + 3 : "");
        line += length + 1;
    }
}

/* Prints the usage and exits if the first argument is --help.  Refuses any other option, and fewer
 * than `least` or more than `most` arguments, with status 2. */
static inline void check_arguments(int count, char **words, int least, int most)
{
    if (count > 1 && strcmp(words[1], "--help") == 0) {
        print_usage();
        exit(0);
    }
    for (int i = 1; i < count; i++)
        if (words[i][0] == '-') {
            fprintf(stderr, "%s: unknown option '%s'; --help prints the usage\n", words[0],
                    words[i]);
            exit(2);
        }
    if (count - 1 >= least && count - 1 <= most)
        return;
    fprintf(stderr, "%s: %d to %d arguments are needed, not %d; --help prints the usage\n",
            words[0], least, most, count - 1);
    exit(2);
}

#endif
