/* launchers.c -- any environment, one NAME=VALUE per line, as set by another launcher: a job found
 * in it has a valid description. */
#include "fuzz.h"

#include <string.h>
#include <unistd.h>

#include "comm/roster.h"
#include "launch/rendezvous/endpoint.h"
#include "launch/foreign.h"

enum { TEXT_BYTES = 4096, NAMES = 64 };

/* Splits a text into lines, in place. */
static void read_lines(char **names, char *text)
{
    size_t count = 0;

    for (char *line = strtok(text, "\n"); line != NULL && count < NAMES; line = strtok(NULL, "\n"))
        names[count++] = line;
    names[count] = NULL;
}

static void check(const lki_foreign *job)
{
    lki_endpoint endpoint;

    if (job->by == NULL)
        return;
    LK_ASSERT(job->size > 1 && job->size <= LKI_RANKS_MAX && job->rank < job->size);
    LK_ASSERT(job->local_rank < job->local_size && job->local_size <= job->size);
    LK_ASSERT(job->rank - job->local_rank + job->local_size <= job->size);
    LK_ASSERT(memchr(job->rendezvous, '\0', sizeof job->rendezvous) != NULL);
    if (lki_endpoint_parse(&endpoint, job->rendezvous) == LK_OK)
        LK_ASSERT(endpoint.host[0] != '\0' && endpoint.port[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char         text[TEXT_BYTES], *names[NAMES + 1], **kept = environ;
    size_t       length = bytes < sizeof text ? bytes : sizeof text - 1;
    lki_foreign  job;

    memcpy(text, data, length);
    text[length] = '\0';
    read_lines(names, text);
    environ      = names;
    lk_status st = lki_foreign_find(&job);
    environ      = kept;
    if (st == LK_OK)
        check(&job);
    else
        LK_ASSERT(st == LK_EINVAL && lk_error_last()->message[0] != '\0');
    return 0;
}
