/* link/simulated_testing.h -- for tests: a wire for each rank of a simulation, and a thread that
 * uses it.
 *
 * A rank's main returns true on success; on failure it prints the reason.
 */
#ifndef LKI_LINK_SIMULATED_TESTING_H
#define LKI_LINK_SIMULATED_TESTING_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/chaos.h"
#include "link/sim.h"
#include "link/wire/wire.h"

enum { SIMULATED_MAX = 16 };

typedef struct {
    uint32_t  rank, ranks;
    uint64_t  seed;
    lki_sim  *sim;
    lki_wire *wire;
    int64_t   timeout_ms; /* time limit of sim_await() */
} simulated;

typedef bool (*simulated_main)(simulated *s, void *context);

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: rank %u of %u, seed %llu: %s is false; last error: %s\n",    \
                    __FILE__, __LINE__, s->rank, s->ranks, (unsigned long long)s->seed,          \
                    #condition, lki_wire_failure(s->wire)->message);                             \
            return false;                                                                        \
        }                                                                                        \
    } while (0)

static inline lk_status sim_progress(simulated *s, int64_t ms)
{
    bool moved;
    return lki_wire_progress(s->wire, ms, &moved);
}

/* Waits until the message is done.  LK_ETIMEOUT after `timeout_ms` of simulated time. */
static inline lk_status sim_await(simulated *s, const lki_message *message)
{
    int64_t until = lki_wire_now_ms(s->wire) + s->timeout_ms;

    while (!message->done) {
        if (lki_wire_now_ms(s->wire) >= until)
            return LK_ETIMEOUT;
        lk_status st = sim_progress(s, 10);
        if (st != LK_OK)
            return st;
        lki_wire_probe(s->wire);
    }
    return LK_OK;
}

typedef struct {
    simulated        s;
    const lki_chaos *chaos; /* faults injected into this rank's link; NULL: none */
    simulated_main   main;
    void            *context;
    bool             satisfied;
} simulated_thread;

static inline void *simulated_thread_main(void *argument)
{
    simulated_thread *t    = argument;
    lki_link         *link = lki_sim_link(t->s.sim, t->s.rank);

    if (t->chaos != NULL && lki_chaos_open(&link, link, t->chaos) != LK_OK)
        abort();
    if (lki_wire_open(&t->s.wire, link) != LK_OK)
        abort();
    t->satisfied = t->main(&t->s, t->context);
    lki_wire_close(t->s.wire, false);
    return NULL;
}

/* Runs `main` on every rank.  Returns true if `main` returned true on every rank.  `chaos` is NULL
 * or has the faults of each rank.  *trace becomes the trace of the run unless `trace` is NULL. */
static inline bool simulate_with(const lki_sim_options *options, const lki_chaos *chaos,
                                 simulated_main main, void *context, uint64_t *trace)
{
    simulated_thread ranks[SIMULATED_MAX] = { 0 };
    pthread_t        threads[SIMULATED_MAX];
    lki_sim         *sim;
    bool             satisfied = true;

    if (options->ranks > SIMULATED_MAX || lki_sim_new(&sim, options) != LK_OK)
        abort();
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        ranks[rank] = (simulated_thread){
            .s       = { rank, options->ranks, options->seed, sim, NULL, 30000 },
            .chaos   = chaos == NULL ? NULL : &chaos[rank],
            .main    = main,
            .context = context,
        };
        if (pthread_create(&threads[rank], NULL, simulated_thread_main, &ranks[rank]) != 0)
            abort();
    }
    for (uint32_t rank = 0; rank < options->ranks; rank++) {
        (void)pthread_join(threads[rank], NULL);
        satisfied = satisfied && ranks[rank].satisfied;
    }
    if (trace != NULL)
        *trace = lki_sim_trace(sim);
    lki_sim_free(sim);
    return satisfied;
}

static inline bool simulate(const lki_sim_options *options, simulated_main main, void *context)
{
    return simulate_with(options, NULL, main, context, NULL);
}

#endif
