/* comm/hosted_testing.h -- for tests: the ranks of several hosts as threads of one process.  Each
 * host has its own board; the links are simulated, or supplied by the test. */
#ifndef LKI_COMM_HOSTED_TESTING_H
#define LKI_COMM_HOSTED_TESTING_H

#include "comm/span/span.h"
#include "link/sim.h"
#include "comm/world_testing.h"

enum { HOSTED_MAX = 96 };

typedef struct {
    uint32_t hosts;
    uint32_t each;       /* number of ranks per host */
    uint32_t fewer, fewer_first; /* number of ranks by which the last (`fewer`) and the first host
                                  * (`fewer_first`) are smaller than the other hosts */
    uint32_t timeout_ms; /* 0: WORLD_PATIENCE_MS */
    uint64_t seed;
    lki_sim **sim;       /* receives the simulation, unless NULL */
    const char *algorithms, *tuning;
    bool        quarrels; /* ranks may disagree: a rank may detect a failure before its communicator
                           * is open */
    size_t      segment_bytes;
    lki_link  **links;                  /* links of all ranks, taken over; NULL: simulated links */
    struct lki_thread_rebuild *rebuild; /* for lk_comm_rebuild(); NULL: not available */
} hosted;

typedef struct {
    lk_comm  *local;
    lk_comm  *comm;
    lki_link *link;
    uint32_t *host_of;
    size_t    segment_bytes;
    bool      quarrels;
    world_main main;
    void     *context;
    bool      satisfied;
} hosted_rank;

static inline void *hosted_thread(void *argument)
{
    hosted_rank *r = argument;

    if (lki_span_open(&r->comm, r->local, r->link, r->host_of) != LK_OK) {
        r->satisfied = r->quarrels;
        if (!r->quarrels)
            fprintf(stderr, "cannot open a span: %s\n", lk_error_last()->message);
        return NULL;
    }
    r->comm->self->tuning.segment_bytes = r->segment_bytes;
    r->satisfied = r->main(r->comm, r->context);
    lk_comm_free(r->comm);
    return NULL;
}

static inline uint32_t hosted_size(hosted h)
{
    return h.hosts * h.each - h.fewer - h.fewer_first;
}

/* Returns the first rank of `host`.  If `host` is the number of hosts, returns the number of
 * ranks. */
static inline uint32_t hosted_first(hosted h, uint32_t host)
{
    return host == 0 ? 0 : host == h.hosts ? hosted_size(h) : host * h.each - h.fewer_first;
}

/* Creates the simulation.  Ranks that also wait for each other through shared memory cannot use
 * LKI_SIM_BATON. */
static inline lki_sim *hosted_sim(hosted h)
{
    lki_sim_options options = { .mode    = h.each == 1 ? LKI_SIM_BATON : LKI_SIM_FREE,
                                .ranks   = hosted_size(h),
                                .streams = 2,
                                .seed    = h.seed };
    lki_sim *sim;

    if (lki_sim_new(&sim, &options) != LK_OK)
        abort();
    if (h.sim != NULL)
        *h.sim = sim;
    return sim;
}

/* Runs `main` on all ranks.  Returns the number of ranks on which `main` returned true. */
static inline uint32_t hosted_run(hosted h, world_main main, void *context)
{
    uint32_t        size = hosted_size(h), satisfied = 0;
    hosted_rank    *ranks   = calloc(size, sizeof *ranks);
    pthread_t      *threads = calloc(size, sizeof *threads);
    uint32_t       *host_of = calloc(size, sizeof *host_of);
    lki_sim        *sim     = h.links == NULL ? hosted_sim(h) : NULL;
    lk_comm_options options = { .struct_size = sizeof(lk_comm_options),
                                .timeout_ms  = h.timeout_ms == 0 ? WORLD_PATIENCE_MS : h.timeout_ms,
                                .algorithms  = h.algorithms,
                                .tuning      = h.tuning };

    if (size > HOSTED_MAX || ranks == NULL || threads == NULL || host_of == NULL ||
        (sim == NULL && h.links == NULL))
        abort();
    for (uint32_t host = 0; host < h.hosts; host++) {
        uint32_t   first = hosted_first(h, host), count = hosted_first(h, host + 1) - first;
        lki_roster roster = { .world = size, .first = first, .count = count };
        lk_comm   *comms[HOSTED_MAX];
        if (lki_comm_open_seated(comms, roster, h.rebuild, &options) != LK_OK)
            abort();
        for (uint32_t k = 0; k < count; k++) {
            lki_link *link     = sim != NULL ? lki_sim_link(sim, first + k) : h.links[first + k];
            host_of[first + k] = host;
            ranks[first + k]   = (hosted_rank){ comms[k], NULL, link,
                                                host_of,  h.segment_bytes, h.quarrels, main,
                                                context, false };
        }
    }
    for (uint32_t rank = 0; rank < size; rank++)
        if (pthread_create(&threads[rank], NULL, hosted_thread, &ranks[rank]) != 0)
            abort();
    for (uint32_t rank = 0; rank < size; rank++) {
        (void)pthread_join(threads[rank], NULL);
        satisfied += ranks[rank].satisfied;
    }
    lki_sim_free(sim);
    free(host_of);
    free(threads);
    free(ranks);
    return satisfied;
}

static inline bool hosted_all(hosted h, world_main main, void *context)
{
    return hosted_run(h, main, context) == hosted_size(h);
}

#endif
