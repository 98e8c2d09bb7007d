/* replay.c -- runs a fuzz target on the files of a folder, without libFuzzer: replay.TARGET DIR...
 *
 * Thus every build runs the corpora, under its sanitizers.  A folder without files is an error,
 * because it would always pass.
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Runs a file's contents in memory of exactly its size, so that a sanitizer detects reads beyond
 * it. */
static void replay(const char *path)
{
    FILE       *file = fopen(path, "rb");
    struct stat info;
    if (file == NULL || stat(path, &info) != 0) {
        fprintf(stderr, "replay: cannot open %s\n", path);
        exit(1);
    }
    size_t   bytes = (size_t)info.st_size;
    uint8_t *data  = malloc(bytes > 0 ? bytes : 1);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        exit(1);
    }
    (void)fclose(file);
    printf("%s\n", path);
    (void)fflush(stdout); /* makes the name visible after a crash */
    (void)LLVMFuzzerTestOneInput(data, bytes);
    free(data);
}

static size_t replay_folder(const char *folder)
{
    DIR   *handle = opendir(folder);
    size_t count  = 0;
    if (handle == NULL) {
        fprintf(stderr, "replay: cannot open the folder %s\n", folder);
        exit(1);
    }
    for (const struct dirent *entry = readdir(handle); entry != NULL; entry = readdir(handle)) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        replay(path);
        count++;
    }
    (void)closedir(handle);
    return count;
}

int main(int argc, char **argv)
{
    size_t count = 0;
    for (int i = 1; i < argc; i++)
        count += replay_folder(argv[i]);
    printf("replay: %zu files\n", count);
    return count > 0 ? 0 : 1;
}
